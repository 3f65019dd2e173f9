"""The checks themselves, which run in a child process; each returns outcomes without names and seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..backends import InductorImplementation
from ..contract import Op
from ..device import Device
from ..discovery.catalog import Catalog
from ..errors import CheckError, RegistryError, in_a_line
from ..implementation import Implementation
from ..problem import Problem, Value
from ..testing import check_implementation, check_op
from ..tuner.planning.compiling import CompiledVariant, compile_plans
from ..tuner.planning.problems import plan
from .outcomes import CheckVerdict
from .target import catalog_with_plugin, is_file, opened

INTERPRETED_BYTES = 4096
"""The most bytes that a problem in Triton's interpreter moves, which takes milliseconds for each program."""

UNKNOWN = "unknown"
"""The detail under which message and hint stand if there is no such plugin."""

_NOTHING = ["nothing was checked"]


class CheckFinding(NamedTuple):
    """What one check has found: its verdict, the reason, and details as plain data."""

    verdict: CheckVerdict
    reason: str = ""
    details: Mapping[str, Any] = {}
    subject: str = ""


def _is_triton(implementation: Implementation) -> bool:
    """Whether an implementation is a TritonImplementation, without an import of Triton, which may not be installed."""
    triton = sys.modules.get("registry.backends.triton")
    return triton is not None and isinstance(implementation, triton.TritonImplementation)


def inventory(target: str) -> CheckFinding:
    """Load the plugin; ``details`` name its ops and implementations, and what the other checks must know of them."""
    try:
        catalog, report = opened(target)
    except RegistryError as fault:
        unknown = {} if is_file(target) else {UNKNOWN: [fault.message, fault.hint]}
        return CheckFinding("failed", f"{fault.message}{fault.hint and f' ({fault.hint})'}", unknown)
    listed = [_listed(catalog, *entry.split("/", 1)) for entry in report.implementations]
    details = {"plugin": report.name, "ops": list(report.ops), "implementations": listed}
    if report.blocked:
        return CheckFinding(
            "failed", "the environment forbids its import, see KERNEL_REGISTRY_PLUGINS and _BLOCK", details
        )
    inactive = f"it implements {', '.join(report.inactive)}, which no plugin defines" if report.inactive else ""
    faults = "; ".join(filter(None, (report.fault, inactive)))
    if not faults and not report.ops and not listed:
        faults = "it brings no op and no implementation"
    return CheckFinding("failed" if faults else "passed", faults, details)


def _listed(catalog: Catalog, op: str, name: str) -> dict[str, Any]:
    found = catalog.implementation(op, name)
    compiles = found.compiles_anywhere and not isinstance(found, InductorImplementation)
    return {
        "op": op,
        "name": name,
        "devices": sorted(found.device_types),
        "triton": _is_triton(found),
        "compiles": compiles,
    }


def contract(target: str, op: str) -> CheckFinding:
    """Check the contract of an op by ``registry.testing.check_op``."""
    catalog = catalog_with_plugin(target)
    return checked(lambda: check_op(catalog.op(op)))


def numerics(
    target: str, op: str, name: str, device: str, interpreted: bool, dims: Mapping[str, Value] | None
) -> CheckFinding:
    """Check an implementation on the op's examples; in Triton's interpreter on the small ones."""
    catalog = catalog_with_plugin(target)
    contract_, implementation = catalog.op(op), catalog.implementation(op, name)
    problems = [dims] if dims else _small(contract_) if interpreted else None
    return checked(lambda: check_implementation(implementation, contract_, problems=problems, device=device))


def _small(op: Op) -> list[Mapping[str, Value]]:
    """The examples that move few bytes; if all move more, the one that moves least."""
    sized = sorted(((op.floor(op.problem_of(dims)).bytes, number) for number, dims in enumerate(op.examples)))
    kept = [number for size, number in sized if size <= INTERPRETED_BYTES] or [number for _, number in sized[:1]]
    return [op.examples[number] for number in kept]


def checked(check: Callable[[], Any]) -> CheckFinding:
    """The finding of a check of ``registry.testing``; skipped if the implementation refuses every problem."""
    try:
        report = check()
    except CheckError as fault:
        lines = str(fault).splitlines()[1:]
        others = ("  skipped: ", "  warning: ")
        failures = [line.strip().removeprefix("failed: ") for line in lines if not line.startswith(others)]
        refused = [line.removeprefix("  skipped: ") for line in lines if line.startswith("  skipped: ")]
        if failures == _NOTHING and refused:
            return CheckFinding("skipped", "\n".join(refused))
        return CheckFinding("failed", "\n".join(failures))
    warnings = "\n".join(f"warning: {line}" for line in report.warned)
    return CheckFinding("passed", warnings, {"checked": len(report.checked), "refused": list(report.skipped)})


def compiled(target: str, op: str, name: str, architecture: str, dims: Mapping[str, Value] | None) -> CheckFinding:
    """Compile the default configuration of each example of the op for an architecture; ``""`` is this host."""
    catalog = catalog_with_plugin(target)
    contract_, implementation = catalog.op(op), catalog.implementation(op, name)
    device = Device.without_hardware(architecture) if architecture else Device.of("cpu")
    problems = [contract_.problem_of(each) for each in ([dims] if dims else contract_.examples)]

    def takes(one: Implementation, _: Device) -> bool:
        return one is implementation

    report = compile_plans(plan(problems, catalog, device, [name]), takes, every_config=False)
    faults = [f"{_shown(problems, each)}: {each.fault}" for each in report.variants if each.fault]
    details = {"variants": [_resources(each) for each in report.variants if not each.fault]}
    if faults:
        return CheckFinding("failed", "\n".join(faults), details)
    if not report.variants:
        return CheckFinding("skipped", "\n".join(sorted({each.reason for each in report.omitted})))
    return CheckFinding("passed", "", details)


def _shown(problems: Sequence[Problem], variant: CompiledVariant) -> str:
    return str((variant.problems or problems)[0])


def _resources(variant: CompiledVariant) -> dict[str, Any]:
    return {
        "kernel": variant.kernel, "config": dict(variant.config), **variant.resources, "occupancy": variant.occupancy,
        "problem": dict(variant.problems[0].dims), "problems": len(variant.problems),
    }  # fmt: skip


def guarded(step: Callable[..., CheckFinding], arguments: Mapping[str, Any]) -> CheckFinding:
    """What ``step`` finds; an exception of it is a failure of the plugin, whose code it runs."""
    try:
        return step(**arguments)
    except RegistryError as fault:
        return CheckFinding("failed", f"{fault.message}{fault.hint and f' ({fault.hint})'}")
    except Exception as fault:
        return CheckFinding("failed", in_a_line(fault))

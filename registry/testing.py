"""What the author of an op or an implementation checks it with. Both functions return a Report or raise CheckError.

from registry.testing import check_implementation

def test_row_softmax() -> None:
    check_implementation(RowSoftmax(), SOFTMAX)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from . import numerics
from .bits import same_bits
from .contract import Op, as_tuple
from .contract_check import blind_spots
from .device import Device
from .dispatch.plan import Candidate, Plan, build
from .errors import CheckError, RegistryError
from .implementation import Implementation, Tensors
from .problem import Problem, TensorSpec, Value
from .space import Config
from .surroundings import LAYOUTS, Layout, Surrounded, laid_out, surrounded

SEED = 1234


@dataclass(frozen=True)
class Report:
    """What was checked, what was skipped and why, what failed: a line each."""

    subject: str
    checked: tuple[str, ...]
    skipped: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __str__(self) -> str:
        lines = [
            f"{self.subject}: {len(self.checked)} checked, {len(self.skipped)} skipped, {len(self.failures)} failed"
        ]
        lines += [f"  failed: {line}" for line in self.failures]
        lines += [f"  skipped: {line}" for line in self.skipped]
        return "\n".join(lines)


@dataclass
class _Notes:
    """A report in the making."""

    subject: str
    checked: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, faults: Iterable[str]) -> None:
        """``what`` was checked and has these faults."""
        self.checked.append(what)
        self.failures += [f"{what}: {fault}" for fault in faults]

    def report(self) -> Report:
        """The report; raises CheckError when something failed, or when there was nothing to check."""
        if not self.checked:
            self.failures.append("nothing was checked")
        report = Report(self.subject, tuple(self.checked), tuple(self.skipped), tuple(self.failures))
        if not report.ok:
            raise CheckError(str(report))
        return report


def check_op(op: Op, *, problems: Sequence[Problem | Mapping[str, Value]] | None = None) -> Report:
    """Check that a contract agrees with itself, on the CPU; raises CheckError with every fault.

    On ``problems`` (the op's examples when not given) and every kind of inputs: the inputs fit the schema, pose the
    problem again and are reproducible; the fake tells the reference's shapes, dtypes and strides; the reference leaves
    its arguments alone and is accepted by its own tolerance; the floor is positive. On its examples taken together the
    tolerance refuses what nobody computed: zeros, one number everywhere, the output of a previous call.
    """
    notes = _Notes(f"op {op.name}")
    checked = _problems(op, problems)
    for problem in checked:
        notes.add(str(problem), _guarded(_op_faults(op, problem)))
    notes.failures += blind_spots(op, _problems(op, None) or checked)
    return notes.report()


def check_implementation(
    implementation: Implementation,
    op: Op,
    *,
    problems: Sequence[Problem | Mapping[str, Value]] | None = None,
    device: Device | torch.device | str | None = None,
    configs: Literal["default", "all"] = "default",
) -> Report:
    """Check that an implementation is right; raises CheckError with every fault.

    problems  problems or their dimensions; the op's examples, odd sizes among them, when not given
    device    the best one here that the implementation runs on, when not given
    configs   its default configuration only, or every one of its space

    Each candidate runs on every kind of inputs into poisoned outputs with poisoned surroundings, and again on inputs
    that are not aligned and not contiguous: numbers against the float64 reference, dtype, strides, aliasing, writes
    beside the outputs, changed inputs, and two runs bit by bit unless ``deterministic`` is False. What the
    implementation says it does not support is skipped, with its reasons.
    """
    there = _device(implementation, device)
    notes = _Notes(f"{implementation.name} of {op.name} on {there}")
    if implementation.op != op.name:
        notes.failures.append(f"it implements {implementation.op!r}, not {op.name!r}")
    for problem in _problems(op, problems):
        if reasons := _reasons(implementation, problem, there):
            notes.skipped.append(f"{problem}: {reasons}")
            continue
        chosen, faults = _configs(implementation, problem, there, configs)
        notes.failures += [f"{problem}: {fault}" for fault in faults]
        for config in chosen:
            candidate = Candidate(implementation, config)
            for layout in LAYOUTS:
                _check_layout(notes, op, candidate, problem, there, layout)
    return notes.report()


def _problems(op: Op, given: Sequence[Problem | Mapping[str, Value]] | None) -> list[Problem]:
    if given is None:
        given = op.examples
    return [each if isinstance(each, Problem) else op.problem_of(each) for each in given]


def _device(implementation: Implementation, device: Device | torch.device | str | None) -> Device:
    if isinstance(device, Device):
        return device
    if device is None:
        usable = "cuda" in implementation.device_types and torch.cuda.is_available()
        device = "cuda" if usable or "cpu" not in implementation.device_types else "cpu"
    return Device.of(device)


def _reasons(implementation: Implementation, problem: Problem, device: Device) -> str:
    if device.type not in implementation.device_types:
        return f"it runs on {', '.join(sorted(implementation.device_types))}, not on {device.type}"
    return "; ".join(implementation.unsupported(problem, device))


def _configs(
    implementation: Implementation, problem: Problem, device: Device, which: Literal["default", "all"]
) -> tuple[list[Config], list[str]]:
    space = implementation.space(problem, device)
    if not space.configs:
        return [], ["its space has no valid configuration; unsupported() should have given a reason"]
    default = implementation.default(problem, device)
    if violations := space.violations(default):
        return list(space.configs) if which == "all" else [], [f"its default is not in its space: {violations[0]}"]
    return list(space.configs) if which == "all" else [default], []


def _guarded(faults: Iterator[str]) -> Iterator[str]:
    """Faults, and whatever the checked code raises as one more: it is somebody else's code that is under test."""
    try:
        yield from faults
    except RegistryError as fault:
        yield fault.message
    except Exception as fault:
        yield f"raised {type(fault).__name__}: {str(fault).strip() or 'no message'}"


# --- implementations ---


def _check_layout(
    notes: _Notes, op: Op, candidate: Candidate, problem: Problem, device: Device, layout: Layout
) -> None:
    kinds = op.kinds if layout == "contiguous" else op.kinds[:1]
    values = _values(op, problem, kinds[0], device, layout)
    posed = op.problem(op.arguments(values))
    what = f"{problem} {layout} {candidate}"
    if reasons := "; ".join(candidate.implementation.unsupported(posed, device)):
        notes.skipped.append(f"{what}: {reasons}")
        return
    notes.add(what, _guarded(_candidate_faults(op, candidate, posed, device, layout, kinds)))


def _candidate_faults(
    op: Op, candidate: Candidate, problem: Problem, device: Device, layout: Layout, kinds: tuple[str, ...]
) -> Iterator[str]:
    arguments = op.arguments(_values(op, problem, kinds[0], device, layout))
    plan = build(op, candidate, problem, arguments, device)
    for kind in kinds:
        for fault in _guarded(_run_faults(plan, _values(op, problem, kind, device, layout))):
            yield f"{kind} inputs: {fault}"
    if candidate.implementation.deterministic and not op.parsed.mutates:
        values = _values(op, problem, kinds[0], device, layout)
        first = as_tuple(plan(*values))
        for _ in range(2):
            if not _all_same(first, as_tuple(plan(*values))):
                yield "two runs on the same inputs differ; say deterministic = False if that is meant"
                return


def _run_faults(plan: Plan, values: tuple[Any, ...]) -> Iterator[str]:
    """One run into poisoned outputs: everything that can be wrong with it."""
    op = plan.op
    reference = numerics.reference64(op, values)
    own = numerics.own_error(op, plan.problem, values, reference)
    before = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)
    given = [surrounded(spec) for spec in plan.signature.outputs.values()]
    outputs = plan.into(_outputs(plan, given), values)
    if faults := numerics.output_faults(outputs, plan.signature.outputs, values):
        yield from faults
        return
    if not all(each.untouched() for each in given):
        yield "it writes outside its outputs"
    for parameter, value, old in zip(op.parsed.parameters, values, before, strict=True):
        if isinstance(value, torch.Tensor) and not parameter.mutated and not same_bits(value, old):
            yield f"it changes its input {parameter.name}"
    found = numerics.compare(op, plan.problem, op.results(outputs, values), reference, own)
    if not found.ok:
        yield found.message


def _outputs(plan: Plan, given: list[Surrounded]) -> Tensors:
    return () if plan.candidate.implementation.returns_outputs else tuple(each.tensor for each in given)


def _values(op: Op, problem: Problem, kind: str, device: Device, layout: Layout) -> tuple[Any, ...]:
    """Inputs of that kind, always the same ones, laid out so."""
    generator = torch.Generator(device.torch).manual_seed(SEED)
    return tuple(
        laid_out(value, layout) if isinstance(value, torch.Tensor) else value
        for value in op.parsed.bind(op.inputs(problem, kind, generator), {})
    )


def _all_same(one: Tensors, other: Tensors) -> bool:
    return all(same_bits(left, right) for left, right in zip(one, other, strict=True))


# --- ops ---


def _op_faults(op: Op, problem: Problem) -> Iterator[str]:
    floor = op.floor(problem)
    if floor.bytes <= 0 or floor.flop < 0:
        yield f"its floor is {floor}: bytes must be positive, flop not negative"
    for kind in op.kinds:
        values = _inputs(op, problem, kind)
        again = _inputs(op, problem, kind)
        if not all(same_bits(one, two) for one, two in zip(_tensors(values), _tensors(again), strict=True)):
            yield f"{kind} inputs: two generators with one seed make different inputs"
        posed = op.problem(op.arguments(values))
        if posed != problem:
            yield f"{kind} inputs: they pose {posed}"
            continue
        yield from (f"{kind} inputs: {fault}" for fault in _reference_faults(op, problem, values))


def _reference_faults(op: Op, problem: Problem, values: tuple[Any, ...]) -> list[str]:
    reference = numerics.reference64(op, values)
    own = numerics.own_error(op, problem, values, reference)
    before = [tensor.clone() for tensor in _tensors(values)]
    outputs = as_tuple(op.reference(*values))
    faults = numerics.output_faults(outputs, _specs(op, values), () if op.parsed.mutates else values)
    if not op.parsed.mutates and not _all_same(tuple(_tensors(values)), tuple(before)):
        faults.append("the reference changes an argument that the schema does not mark as mutated")
    if faults:
        return [f"reference against fake: {fault}" for fault in faults]
    found = numerics.compare(op, problem, op.results(outputs, values), reference, own)
    return [] if found.ok else [f"its own reference is refused: {found.message}"]


def _specs(op: Op, values: tuple[Any, ...]) -> dict[str, TensorSpec]:
    return op.output_specs(op.arguments(values), torch.device("cpu"))


def _inputs(op: Op, problem: Problem, kind: str) -> tuple[Any, ...]:
    return op.parsed.bind(op.inputs(problem, kind, torch.Generator().manual_seed(SEED)), {})


def _tensors(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]

"""``registry compile``: registers, spills and shared memory of every variant, without the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegistryError, UnknownNameError
from .options import Json, Plugins, SeveralOps, catalog_with, split

if TYPE_CHECKING:
    from ..device import Device
    from ..discovery.catalog import Catalog
    from ..implementation import Implementation
    from ..problem import Problem

_ANY_MEMORY = 2**60

Architectures = Annotated[
    list[str],
    typer.Option(
        "--arch", metavar="ARCH", help="What to compile for: sm_80, sm_90, gfx942 ... Repeatable, or with commas."
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--implementations",
        metavar="NAME",
        help="Only these, e.g. triton.row. Repeatable, or with commas. Default: those of the --plugin files, else all.",
    ),
]
ShapesOrExamples = Annotated[
    Path | None,
    typer.Option("--shapes", metavar="FILE", help="The problems, as for tune. Default: each op's examples."),
]
All = Annotated[bool, typer.Option("--all", help="Every configuration, instead of each problem's default.")]


def compile_(
    arch: Architectures,
    op: SeveralOps = None,
    implementations: Names = None,
    plugin: Plugins = None,
    shapes: ShapesOrExamples = None,
    all_: All = False,
    json: Json = False,
) -> None:
    """Show the resources that each variant needs; no GPU is required.

    Registers and spilled bytes a thread, shared bytes and threads a block, and the occupancy of an SM that follows.
    Triton and CUDA kernels are compiled for each --arch; C++ is compiled for this host, and has none of these numbers.
    Exit code 1 when something does not compile.
    """
    from ..device import Device
    from ..tuner.planning.compiling import compile_plans
    from ..tuner.planning.problems import plan
    from .display.compile_table import show

    devices = [Device.without_hardware(name) for name in split("--arch", arch)]
    catalog = catalog_with(plugin)
    wanted = _wanted(catalog, split("--op", op), split("--implementations", implementations))
    problems = _problems(catalog, wanted, shapes)
    host = replace(Device.of("cpu"), memory_bytes=_ANY_MEMORY)
    plans = [planned for device in (*devices, host) for planned in plan(problems, catalog, device)]
    report = compile_plans(plans, lambda one, device: _takes(wanted, one, device), every_config=all_)
    show(report, json=json)
    raise typer.Exit(0 if report.ok else 1)


def _wanted(catalog: Catalog, ops: Sequence[str], names: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """Names of implementations by op: as the options say, else those of the plugin files, else all."""
    brought = {
        entry for report in catalog.plugins() if report.name in catalog.files for entry in report.implementations
    }
    known = {op: [one.name for one in catalog.implementations(op)] for op in ops or catalog.ops()}
    everywhere = {name for found in known.values() for name in found}
    for name in names:
        if name not in everywhere:
            raise UnknownNameError(f"implementation of {', '.join(ops) or 'any op'}", name, everywhere)
    kept = {
        op: frozenset(name for name in found if (name in names if names else f"{op}/{name}" in brought or not brought))
        for op, found in known.items()
    }
    for op in ops:
        if not known[op]:
            from ..discovery.answers import no_implementation

            raise RegistryError(no_implementation(catalog.op(op)))
    if not any(kept.values()):
        raise RegistryError("there is no implementation to compile", hint="name another op by --op")
    return {op: found for op, found in kept.items() if found}


def _problems(catalog: Catalog, wanted: Mapping[str, frozenset[str]], shapes: Path | None) -> list[Problem]:
    """The problems of the wanted ops: those of the shapes file, else the ops' examples."""
    if shapes is not None:
        from ..tuner.shapes.shapes import read_shapes

        listed = read_shapes(shapes, catalog).problems
        found = [problem for op in wanted for problem in listed.get(op, ())]
        if not found:
            raise RegistryError(f"{shapes} has no problem of {', '.join(wanted)}", hint=f"it has {', '.join(listed)}")
        return found
    return [catalog.op(op).problem_of(dims) for op in wanted for dims in catalog.op(op).examples]


def _takes(wanted: Mapping[str, frozenset[str]], implementation: Implementation, device: Device) -> bool:
    """True if an implementation is compiled for a device; for the host only if it runs on no GPU."""
    if implementation.name not in wanted[implementation.op]:
        return False
    return (device.type == "cpu") == ("cuda" not in implementation.device_types)

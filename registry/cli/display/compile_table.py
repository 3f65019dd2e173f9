"""The report of ``registry compile``: the resources of variants, and their faults, equal ones folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ...folding import Place, folded
from . import text

if TYPE_CHECKING:
    from ...tuner.planning.compiling import CompiledVariant, CompileReport, NotCompiled

_COLUMNS = ("regs", "spill", "shared", "threads", "occup.")


def show(report: CompileReport, *, json: bool) -> None:
    """Print the report: resources of each variant by op and target, compile faults, and what was left out."""
    if json:
        text.print_json(as_data(report))
        return
    ordered = sorted(report.variants, key=lambda variant: (variant.op, variant.architecture, variant.implementation))
    for (op, architecture), variants in groupby(ordered, key=lambda variant: (variant.op, variant.architecture)):
        _show_group(op, architecture, list(variants))
    _fold("out", ((_place(one), one.reason) for one in report.omitted))
    text.say(_total(report))


def as_data(report: CompileReport) -> dict[str, object]:
    """The report as plain data."""
    omitted = [{**vars(one), "problem": one.problem.dims} for one in report.omitted]
    variants = [{**vars(one), "problems": [problem.dims for problem in one.problems]} for one in report.variants]
    return {"ok": report.ok, "variants": variants, "omitted": omitted}


def _show_group(op: str, architecture: str, variants: Sequence[CompiledVariant]) -> None:
    well = [variant for variant in variants if not variant.fault]
    text.say(f"{op} for {architecture}: {text.plural(len(variants), 'variant')}")
    if well:
        text.say(" ".join(f"{name:>5}" for name in _COLUMNS) + "  variant")
    for variant in well:
        _say_row(variant)
    _fold("error", ((place, variant.fault) for variant in variants if variant.fault for place in _places(variant)))
    text.say()


def _say_row(variant: CompiledVariant) -> None:
    found = variant.resources
    numbers = [found.get(name) for name in ("registers", "spill_bytes", "shared_bytes", "threads")]
    share = "-" if variant.occupancy is None else f"{variant.occupancy:.2f}"
    cells = [*("-" if number is None else str(number) for number in numbers), share]
    row = " ".join(f"{cell:>{max(len(name), 5)}}" for cell, name in zip(cells, _COLUMNS, strict=True))
    text.say(f"{row}  {_named(variant)}", hang=len(row) + 4)
    text.say(f"{' ' * len(row)}  {_problems(variant)}", hang=len(row) + 4)


def _named(variant: CompiledVariant) -> str:
    config = ", ".join(f"{name}={value}" for name, value in variant.config.items())
    kernel = f" {variant.kernel}" if variant.kernel else ""
    return f"{variant.implementation}{f'({config})' if config else ''}{kernel}"


def _places(variant: CompiledVariant) -> Iterator[Place]:
    for problem in variant.problems:
        yield Place(_named(variant), text.named(problem), text.pairs(variant.config), variant.implementation)


def _place(one: NotCompiled) -> Place:
    told = f"{one.op} {one.implementation}, {one.architecture}"
    return Place(told, text.named(one.problem), group=told)


def _problems(variant: CompiledVariant) -> str:
    more = len(variant.problems) - 1
    return text.pairs(variant.problems[0].dims) + (f" and {text.plural(more, 'problem')} more" if more else "")


def _fold(mark: str, faults: Iterator[tuple[Place, str]]) -> None:
    for line in folded(faults):
        text.say(f"{mark:<7}{line}".replace("\n", "\n" + " " * 7), hang=7)


def _total(report: CompileReport) -> str:
    failed = sum(bool(variant.fault) for variant in report.variants)
    return f"{text.plural(len(report.variants) - failed, 'variant')} compiled, {failed} failed"

"""The tables of ``registry profile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import text
from .table import Column, Group, print_table

if TYPE_CHECKING:
    from ...problem import Problem
    from ...profiling.ncu import KernelReport
    from ...profiling.summary import ProfiledRow
    from ...profiling.trace import Trace

_COLUMNS = (
    Column("problem"),
    Column("implementation"),
    Column("calls", right=True),
    Column("total", right=True),
    Column("median µs", right=True),
    Column("share", right=True),
    Column("of floor", right=True),
)


def show(rows: Sequence[ProfiledRow], whole: Trace) -> None:
    """Prints a line for each problem and implementation, those with the most time first, and what all take together."""
    if rows:
        print_table(_COLUMNS, [Group("", [_cells(row) for row in rows])])
        text.say()
    total = sum(row.total_us for row in rows)
    if whole.on_device:
        kind, all_us = "of the kernels' time, with CUDA graphs replayed and torch's own,", whole.device_us
    else:
        kind, all_us = "of the time from the first event to the last,", whole.host_us
    calls = text.plural(len(whole.calls), "call")
    text.say(f"{calls} of ops: {text.duration_us(total)} {kind} {text.duration_us(all_us)}")


def show_kernels(found: Mapping[Problem, Sequence[KernelReport]]) -> None:
    """Prints each kernel of each problem with its metrics, and the advice of Nsight Compute's rules."""
    for problem, kernels in found.items():
        text.say(text.named(problem))
        for one in kernels:
            text.say(f"  {one.kernel}")
            for name, value in one.metrics.items():
                text.say(f"    {name:<32} {value}")
            for rule, advice in one.advice.items():
                text.say(f"    {rule}: {advice}", hang=6)


def _cells(row: ProfiledRow) -> list[str]:
    return [
        f"{row.op} {row.dims}".rstrip(),
        row.implementation,
        f"{row.calls:,}",
        text.duration_us(row.total_us),
        text.microseconds(row.median_us),
        f"{row.share:.1%}",
        text.of_floor(row.of_floor),
    ]

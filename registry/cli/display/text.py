"""Texts for a terminal: times, ratios, configurations, tables."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ...untrusted.visible import visible

if TYPE_CHECKING:
    from tuning_db import ProblemKey

    from ...problem import Problem

_BEYOND_A_COPY = 2.0
_UNLIMITED = 10_000
"""Columns of a line in a pipe, where a wrapped table could not be cut or searched."""


_MEASURED = 1000
"""Rows of a long table by which its columns are laid out."""


def console() -> Console:
    """A console on stdout that is as wide as the terminal, or never wraps when piped."""
    width = None if sys.stdout.isatty() else _UNLIMITED
    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False, width=width)


def say(text: str = "") -> None:
    """A line on stdout."""
    print(visible(text), flush=True)  # noqa: T201


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    say(json.dumps(value, indent=2, default=plain))


def plain(value: object) -> object:
    """``value`` as a type that JSON has: dataclasses and mappings as dict, sets sorted, everything else as text."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> None:
    """A table without borders; the columns named in ``right`` are numbers."""
    numbers = set(right)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold", no_wrap=name in numbers)
    for row in rows:
        table.add_row(*map(visible, row))
    console().print(table)


def print_long_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> None:
    """A table as ``print_table`` makes it; of many rows only the first are measured, and none is held or folded."""
    left, numbers = iter(rows), set(right)
    first = list(itertools.islice(left, _MEASURED))
    if len(first) < _MEASURED:
        print_table(columns, first, right)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *first, strict=True)]
    for row in itertools.chain([columns], first, left):
        cells = [visible(cell) for cell in row]
        widths = [max(pair) for pair in zip(widths[:-1], map(len, cells), strict=False)] + [0]
        padded = zip(columns, cells, widths, strict=True)
        line = "  ".join(cell.rjust(width) if name in numbers else cell.ljust(width) for name, cell, width in padded)
        sys.stdout.write(f"{line.rstrip()}\n")


def print_json_list(values: Iterable[object]) -> None:
    """One JSON array on stdout, a line for each value, none of which is held."""
    encode = json.JSONEncoder(default=plain).encode
    sys.stdout.write("[")
    for number, value in enumerate(values):
        sys.stdout.write(f"{',' if number else ''}\n{encode(value)}")
    sys.stdout.write("\n]\n")


def microseconds(value: float | None) -> str:
    """Four significant digits: ``12.34``, ``1234``; a dash for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def of_floor(value: float | None) -> str:
    """The part of a device copy's speed, or ``noise`` where it is beyond what any kernel reaches.

    Other work has then kept the device busy while the copy was timed.
    """
    return "noise" if value is not None and value > _BEYOND_A_COPY else ratio(value)


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min 04 s``, ``2 h 05 min``; a dash for what is not known."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def duration_us(value: float) -> str:
    """A time given in µs: ``12.3 µs``, ``45.6 ms``, ``7.8 s``, as it is best read."""
    if value < 1e3:
        return f"{value:.3g} µs"
    return f"{value / 1e3:.3g} ms" if value < 1e6 else duration(value / 1e6)


def pairs(values: Mapping[str, Any]) -> str:
    """``num_warps=4 num_stages=1``, or a dash when there is nothing."""
    return " ".join(f"{name}={value}" for name, value in values.items()) or "-"


def named(problem: Problem | ProblemKey) -> str:
    """``softmax rows=4096 cols=32000 dtype=bfloat16``."""
    return f"{problem.op} {pairs(problem.dims)}"


def plural(count: int, noun: str) -> str:
    """``1 problem``, ``2 problems``, ``2 studies``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"

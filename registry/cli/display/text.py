"""Texts for a terminal: lines, times, ratios, configurations."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ...untrusted.visible import visible

if TYPE_CHECKING:
    from tuning_db import ProblemKey

    from ...problem import Problem

NOTHING = "-"
"""What stands in the place of a value that there is not."""

_BEYOND_A_COPY = 2.0


def width() -> int | None:
    """Characters of a line: ``COLUMNS``, else the terminal's; None in a pipe, where nothing is wrapped."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(line: str, limit: int | None, hang: int) -> list[str]:
    """``line`` in lines of ``limit`` characters, all but the first indented by ``hang``; no word is broken.

    A word that is longer than a line has one of its own.
    """
    if limit is None or len(line) <= limit:
        return [line]
    told = line.lstrip(" ")
    return textwrap.wrap(
        told,
        max(limit, hang + 1),
        initial_indent=line[: len(line) - len(told)],
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(told: str = "", hang: int | None = None) -> None:
    """Lines on stdout, wrapped between words; what is wrapped is indented by ``hang``, or by 2 more than its line."""
    for line in visible(told).split("\n"):
        indent = len(line) - len(line.lstrip(" ")) + 2
        for part in wrapped(line, width(), indent if hang is None else hang):
            write(part)


def write(line: str) -> None:
    """A line on stdout as it is."""
    print(line, flush=True)  # noqa: T201


def say_bold(lines: Iterable[str]) -> None:
    """Lines on stdout, bold in a terminal."""
    for line in lines:
        console().print(line, style="bold", soft_wrap=True)


def console() -> Console:
    """A console on stdout."""
    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    write(visible(json.dumps(value, indent=2, default=plain)))


def plain(value: object) -> object:
    """``value`` as a type that JSON has: dataclasses and mappings as dict, sets sorted, everything else as text."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


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
    return " ".join(f"{name}={value}" for name, value in values.items()) or NOTHING


def candidate(implementation: str, config: Mapping[str, Any]) -> str:
    """``triton.row num_warps=4``, or the name alone."""
    return f"{implementation} {pairs(config)}" if config else implementation


def named(problem: Problem | ProblemKey) -> str:
    """``softmax rows=4096 cols=32000 dtype=bfloat16``."""
    return f"{problem.op} {pairs(problem.dims)}"


def plural(count: int, noun: str) -> str:
    """``1 problem``, ``2 problems``, ``2 studies``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"

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

from tuning_db import is_noise

from ...untrusted.visible import visible

if TYPE_CHECKING:
    from tuning_db import Interval, ProblemKey

    from ...problem import Problem

NOTHING = "-"
"""The text for a missing value."""

_BEYOND_A_COPY = 2.0
_LONGEST_REASON = 300


def width() -> int | None:
    """The number of characters per line: ``COLUMNS``, else the terminal's; None in a pipe, where nothing is wrapped."""
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
    """Print lines, wrapped between words; continuation lines are indented by ``hang``, or by 2 more than their line."""
    for line in visible(told).split("\n"):
        indent = len(line) - len(line.lstrip(" ")) + 2
        for part in wrapped(line, width(), indent if hang is None else hang):
            write(part)


def write(line: str) -> None:
    """Print a line without wrapping."""
    print(line, flush=True)  # noqa: T201


def say_bold(lines: Iterable[str]) -> None:
    """Print lines, bold in a terminal."""
    for line in lines:
        console().print(line, style="bold", soft_wrap=True)


def console() -> Console:
    """A console on stdout."""
    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False)


def print_json(value: object) -> None:
    """Print one JSON document."""
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
    """Print one JSON array, a line per value; values are not kept."""
    encode = json.JSONEncoder(default=plain).encode
    sys.stdout.write("[")
    for number, value in enumerate(values):
        sys.stdout.write(f"{',' if number else ''}\n{encode(value)}")
    sys.stdout.write("\n]\n")


def microseconds(value: float | None) -> str:
    """A time in µs with four significant digits: ``12.34``, ``1234``; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """A ratio with two decimals; a dash for None."""
    return "-" if value is None else f"{value:.2f}"


def interval(ratio: Interval | None) -> str:
    """``1.40 (1.36 to 1.44)``: a value and its interval, ``noise`` for the value in a wide one; a dash for none."""
    if ratio is None:
        return NOTHING
    told = "noise" if is_noise(ratio.low, ratio.high) else f"{ratio.value:.3f}"
    return f"{told} ({ratio.low:.3f} to {ratio.high:.3f})"


def ratio_unless(noise: bool, value: float | None) -> str:
    """A ratio of times as text, or ``noise`` if finals cannot tell the times apart; the ratio 1.0 is always shown."""
    return "noise" if noise and value not in {None, 1.0} else ratio(value)


def of_floor(value: float | None) -> str:
    """The fraction of a device copy's speed, or ``noise`` if no kernel can be so fast.

    In that case other work kept the device busy while the copy was timed.
    """
    return "noise" if value is not None and value > _BEYOND_A_COPY else ratio(value)


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min 04 s``, ``2 h 05 min``; a dash for None."""
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
    """A time in µs as text with a suitable unit: ``12.3 µs``, ``45.6 ms``, ``7.8 s``."""
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


def shortened(reason: str) -> str:
    """A reason that fits into a table: the first line, of a compiler's many also the one with the error."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    errors = [line for line in lines[1:] if "error" in line.lower()]
    told = " ".join([lines[0], *errors[:1]] if errors else lines)
    return told if len(told) <= _LONGEST_REASON else f"{told[:_LONGEST_REASON]}…"

"""Tables as wide as the terminal: no word is broken, and cells that all rows of an op share are printed above them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...untrusted.visible import visible
from . import text

if TYPE_CHECKING:
    from tuning_db import ProblemKey

    from ...problem import Problem, Value

GAP = "  "
"""Spaces between two columns."""

_INDENT = "    "
"""The indent of the numbers of a row that has several lines."""

_BESIDE = 40
"""The least width of texts beside the numbers; with less room they have lines of their own."""

_MEASURED = 1000
"""The number of rows of a long table by whose width its columns are laid out."""


@dataclass(frozen=True)
class Column:
    """A column: ``right`` for numbers, which stay side by side; other cells are texts, wrapped if necessary.

    ``lifts``: a cell that all rows of a group share is printed above them instead. ``label`` precedes a cell that is
    printed outside of its column: ``on NVIDIA H200``.
    """

    name: str
    right: bool = False
    lifts: bool = False
    label: str = ""

    def told(self, cell: str) -> str:
        """The text of a cell that is printed outside of its column."""
        return f"{self.label} {cell}" if self.label and cell else cell


@dataclass(frozen=True)
class Group:
    """Rows under a line, ``title``, with the cells that they share."""

    title: str
    rows: Sequence[Sequence[str]]


TableRow = tuple["Problem | ProblemKey", Sequence[str]]
"""A problem, and its cells."""


def print_problems(columns: Sequence[Column], rows: Iterable[TableRow]) -> None:
    """Print a table of problems, sorted by op and dimensions. In a pipe each row is a line with its whole problem."""
    found = list(rows)
    ops = list(dict.fromkeys(problem.op for problem, _ in found))
    found.sort(key=lambda row: (ops.index(row[0].op), *_order(row[0])))
    if text.width() is None:
        groups = [Group("", [[text.named(problem), *cells] for problem, cells in found])]
    else:
        groups = [_group(list(alike)) for _, alike in itertools.groupby(found, lambda row: (row[0].op, _kind(row[0])))]
    print_table([Column("problem"), *columns], groups)


def print_table(columns: Sequence[Column], groups: Sequence[Group]) -> None:
    """Print a table without borders under one header; empty columns are left out."""
    groups = [Group(group.title, [list(map(_seen, row)) for row in group.rows]) for group in groups]
    if text.width() is not None:
        groups = [_lifted(columns, group) for group in groups]
    used = [
        place for place in range(len(columns))
        if place == 0 or any(row[place] for group in groups for row in group.rows)
    ]  # fmt: skip
    groups = [Group(group.title, [[row[place] for place in used] for row in group.rows]) for group in groups]
    layout = _Layout([columns[place] for place in used], [row for group in groups for row in group.rows])
    text.say_bold(layout.header())
    for number, group in enumerate(groups):
        if number:
            text.say()
        if group.title:
            text.say(group.title, hang=len(_INDENT))
        for row in group.rows:
            for line in layout.row(row):
                text.write(line)


def print_long_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> None:
    """Print a table for a pipe, one line per row; only the first rows decide its widths, and rows are not kept."""
    left, numbers = iter(rows), set(right)
    first = list(itertools.islice(left, _MEASURED))
    widths = [max(map(len, cells)) for cells in zip(columns, *first, strict=True)]
    for row in itertools.chain([columns], first, left):
        cells = [visible(cell) for cell in row]
        widths = [max(pair) for pair in zip(widths[:-1], map(len, cells), strict=False)] + [0]
        padded = zip(columns, cells, widths, strict=True)
        line = GAP.join(cell.rjust(width) if name in numbers else cell.ljust(width) for name, cell, width in padded)
        sys.stdout.write(f"{line.rstrip()}\n")


def _seen(cell: str) -> str:
    return visible(cell.replace("\n", " "))


def shared_dims(problems: Iterable[Problem | ProblemKey]) -> dict[str, Value]:
    """The dimensions that have one value in all of the problems, which are of one op."""
    all_dims = [problem.dims for problem in problems]
    return {name: value for name, value in all_dims[0].items() if all(dims.get(name) == value for dims in all_dims)}


def _kind(problem: Problem | ProblemKey) -> list[str]:
    """The dimensions of a problem that are no sizes, e.g. ``dtype=bfloat16``: problems are grouped by them."""
    return [f"{name}={value}" for name, value in problem.dims.items() if isinstance(value, str | bool | None)]


def _order(problem: Problem | ProblemKey) -> tuple[list[str], list[float]]:
    """Sort key of a problem: the dimensions that are no sizes, then the sizes."""
    sizes = [float(value) for value in problem.dims.values() if not isinstance(value, str | bool | None)]
    return _kind(problem), sizes


def _group(rows: Sequence[TableRow]) -> Group:
    """The rows of one op; its name and the dimensions that all share are the title."""
    shared = shared_dims(problem for problem, _ in rows)
    dims = [{name: value for name, value in problem.dims.items() if name not in shared} for problem, _ in rows]
    return Group(
        " ".join([rows[0][0].op, *([text.pairs(shared)] if shared else [])]),
        [[text.pairs(own) if own else "", *cells] for own, (_, cells) in zip(dims, rows, strict=True)],
    )


def _lifted(columns: Sequence[Column], group: Group) -> Group:
    """The group with the cells that all its rows share in its title."""
    above = [
        place for place, column in enumerate(columns) if column.lifts and len({row[place] for row in group.rows}) == 1
    ]
    told = [columns[place].told(group.rows[0][place]) for place in above]
    rows = [["" if place in above else cell for place, cell in enumerate(row)] for row in group.rows]
    return Group(", ".join(filter(None, [group.title, *told])), rows)


class _Layout:
    """Lays out rows: one line per row if that fits, else the texts wrapped beside the numbers, or below them."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._limit = text.width()
        self._widths = [max(map(len, cells)) for cells in zip([one.name for one in columns], *rows, strict=True)]
        lead, *self._texts = [place for place, column in enumerate(columns) if not column.right]
        self._numbers = [place for place, column in enumerate(columns) if column.right]
        self._fixed = [lead, *self._numbers]
        words = max((len(word) for row in rows for place in self._texts for word in row[place].split()), default=0)
        if self._limit is None or self._width(range(len(columns))) <= self._limit:
            self._lines = self._whole
        elif self._width(self._fixed) + len(GAP) + max(_BESIDE, words + 1) <= self._limit:
            self._lines = self._beside
        else:
            self._lines = self._below

    def header(self) -> list[str]:
        """The header's lines: the names of the columns above their cells."""
        return self._lines([column.name for column in self._columns])

    def row(self, row: Sequence[str]) -> list[str]:
        """The lines of a row."""
        if self._lines == self._whole:
            return self._whole(row)
        texts = {place: self._columns[place].told(row[place]) for place in self._texts if row[place] != text.NOTHING}
        return self._lines([texts.get(place, "") if place in self._texts else cell for place, cell in enumerate(row)])

    def _whole(self, row: Sequence[str]) -> list[str]:
        return [self._aligned(row, range(len(row))).rstrip()]

    def _beside(self, row: Sequence[str]) -> list[str]:
        fixed = self._aligned(row, self._fixed) + GAP
        return text.wrapped(f"{fixed}{self._joined(row)}".rstrip(), self._limit, len(fixed))

    def _below(self, row: Sequence[str]) -> list[str]:
        limit, lead = self._limit or 0, row[self._fixed[0]]
        joined = self._joined(row)
        told = text.wrapped(_INDENT + joined, limit, len(_INDENT)) if joined else []
        room = limit - self._width(self._numbers) - len(GAP)
        if room < len(_INDENT):
            named = ", ".join(f"{row[place]} {self._columns[place].name}" for place in self._numbers if row[place])
            return [*text.wrapped(lead, limit, 2), *text.wrapped(_INDENT + named, limit, len(_INDENT)), *told]
        room = min(room, self._widths[self._fixed[0]])
        above = text.wrapped(lead, limit, 2) if len(lead) > room else []
        return [*above, f"{'' if above else lead:<{room}}{GAP}{self._aligned(row, self._numbers)}", *told]

    def _width(self, places: Collection[int]) -> int:
        return sum(self._widths[place] for place in places) + len(GAP) * (len(places) - 1)

    def _aligned(self, row: Sequence[str], places: Iterable[int]) -> str:
        return GAP.join(
            row[place].rjust(self._widths[place])
            if self._columns[place].right
            else row[place].ljust(self._widths[place])
            for place in places
        )

    def _joined(self, row: Sequence[str]) -> str:
        return ", ".join(row[place] for place in self._texts if row[place])

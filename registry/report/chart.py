"""Charts: coordinates of axes, lines and markers in a box of the chart's own units; a template turns them into SVG."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .scales import Tick

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 12.0, 40.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Marker:
    """A dot at one measured time; hollow when the time was not paired with the winner's in the finals."""

    x: float
    y: float
    hollow: bool


@dataclass(frozen=True)
class Line:
    """A series: its name (an implementation, or ``floor``), its path and its markers."""

    name: str
    path: str
    markers: tuple[Marker, ...] = ()


@dataclass(frozen=True)
class Reading:
    """The text shown while the pointer is over a band of the chart: a title, and (series, value, detail) lines."""

    x: float
    left: float
    width: float
    title: str
    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Chart:
    """A chart: axes, lines, and the texts shown under the pointer."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    readings: tuple[Reading, ...]


def path(points: Sequence[Point]) -> str:
    """The path data (SVG's ``d``) of straight lines through the points."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points) if points else ""


def bands(places: Sequence[float]) -> list[tuple[float, float]]:
    """(left, width) of the part of the chart that is nearest to each place; places that coincide share none."""
    edges = [LEFT, *((one + next_) / 2 for one, next_ in itertools.pairwise(places)), WIDTH - RIGHT]
    return [(round(left, 1), round(right - left, 1)) for left, right in itertools.pairwise(edges)]

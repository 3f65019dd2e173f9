"""A chart as places to draw at: a template turns it into SVG. Units are those of the chart's own box."""

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
    """A dot; hollow when its time was not measured against the winner's."""

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
    """What hovering over a band of the chart tells: a title, and (series, value, detail) lines."""

    x: float
    left: float
    width: float
    title: str
    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Chart:
    """Axes, lines and what hovering tells."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    readings: tuple[Reading, ...]


def path(points: Sequence[Point]) -> str:
    """The points joined by straight lines, as SVG has it."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points) if points else ""


def bands(places: Sequence[float]) -> list[tuple[float, float]]:
    """(left, width) of the part of the chart that is nearest to each place; places that coincide share none."""
    edges = [LEFT, *((one + next_) / 2 for one, next_ in itertools.pairwise(places)), WIDTH - RIGHT]
    return [(round(left, 1), round(right - left, 1)) for left, right in itertools.pairwise(edges)]

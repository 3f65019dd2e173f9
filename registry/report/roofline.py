"""The roofline of an op on a hardware: the rate that each implementation reaches on each problem, below the peaks.

Where problems differ in FLOP per byte, FLOP/s stand against that (Williams, Waterman and Patterson: Roofline, 2009).
Where they do not, as those of elementwise ops, bytes/s stand against bytes. Roofs are the device's peaks, where a run
has stored them, and what its copies reached: the floors of the finals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Caption, Chart, Line, Marker, Reading
from .facts import ProblemFacts, Section
from .formats import dimension, microseconds, pairs, percent, si
from .scales import LogScale
from .work import Roof, Work

_VARIED = 2.0
"""Factor between FLOP per byte of a section's problems from which on they are told apart."""
_FLOOR, _ROOF = "floor", "roof"
_PER_SECOND = 1e6
_SHORTEST_US = 1e-3


class _Point(NamedTuple):
    """A problem with its work; ``x`` is its place in the units of the axis."""

    facts: ProblemFacts
    work: Work
    x: float


class _Axes(NamedTuple):
    """The axes of a chart: labels and units, and the part of a problem's work that its rate counts."""

    x_label: str
    y_label: str
    x_unit: str
    y_unit: str
    amount: Callable[[Work], float]


_COMPUTE = _Axes("FLOP per byte", "FLOP/s", "", "FLOP/s", lambda work: work.flop)
_BANDWIDTH = _Axes("bytes", "bytes/s", "B", "B/s", lambda work: work.bytes)


def roofline(section: Section) -> Chart | None:
    """The chart of a section; None if the work of its problems is not known, or none was timed."""
    known = [(facts, facts.work) for facts in section.problems if facts.work is not None and facts.timed]
    if not known:
        return None
    intensities = [work.intensity for _, work in known]
    if min(intensities) > 0 and max(intensities) > _VARIED * min(intensities):
        return _chart(section, _COMPUTE, [_Point(facts, work, work.intensity) for facts, work in known])
    return _chart(section, _BANDWIDTH, [_Point(facts, work, work.bytes) for facts, work in known])


def _chart(section: Section, axes: _Axes, points: Sequence[_Point]) -> Chart:
    rates = [_rate(axes, point, one.us) for point in points for one in point.facts.timed.values()]
    roofs = list(_roofs(section, axes, points, max(rates)))
    across = LogScale.around([point.x for point in points], LEFT + 16, WIDTH - RIGHT - 16, margin=1.3)
    flats = [roof.flat for roof, _, _ in roofs if roof.flat < math.inf]
    up = LogScale.around([*rates, *flats, *(roof.at(across.low) for roof, _, _ in roofs)], HEIGHT - BOTTOM, TOP)
    lines = [Line(series, _path(roof, across, up)) for roof, series, _ in roofs]
    captions = [Caption(*_end(roof, across, up), text) for roof, _, text in roofs]
    for name in section.implementations:
        timed = [(point, point.facts.timed[name]) for point in points if name in point.facts.timed]
        markers = [Marker(across(point.x), up(_rate(axes, point, one.us)), not one.in_finals) for point, one in timed]
        lines.append(Line(name, "", markers))
    readings = [_reading(section, axes, point, across, up, roofs[0][0] if roofs else None) for point in points]
    readings.sort(key=lambda reading: (reading.x, reading.y or 0.0))
    x_ticks = across.ticks(lambda value: si(value) + axes.x_unit)
    y_ticks = up.ticks(lambda value: si(value * _PER_SECOND))
    title = f"{axes.y_label} against {axes.x_label}"
    return Chart(title, axes.x_label, axes.y_label, x_ticks, y_ticks, lines, readings, captions)


class _RoofLine(NamedTuple):
    """An upper bound of a rate per µs: ``slope`` times the FLOP per byte, at most ``flat`` (inf where unknown)."""

    slope: float
    flat: float

    def at(self, x: float) -> float:
        return min(self.slope * x, self.flat) if self.slope else self.flat


def _roofs(
    section: Section, axes: _Axes, points: Sequence[_Point], fastest: float
) -> Iterable[tuple[_RoofLine, str, str]]:
    """(roof, series, caption) of the device's peaks and of its copies, of those that are known."""
    peak = section.roof or Roof(0.0, 0.0)
    copies = [point.work.bytes / floor for point in points if (floor := point.facts.floor_us) is not None]
    flop = max((peak.flop_at(point.facts.problem.dims.get("dtype")) for point in points), default=0.0)
    if axes is _COMPUTE and 0 < flop < fastest:  # operands of 8 bits, whatever the dtype of the result
        flop = peak.flop_per_us
    if section.regime == "cold" and peak.bytes_per_us:
        told = f"peak {si(peak.bytes_per_us * _PER_SECOND)}B/s"
        told += f", {si(flop * _PER_SECOND)}FLOP/s" if flop and axes is _COMPUTE else ""
        yield _roof(axes, peak.bytes_per_us, flop), _ROOF, told
    if copies:
        yield _roof(axes, max(copies), flop), _FLOOR, f"copies reach {si(max(copies) * _PER_SECOND)}B/s"


def _roof(axes: _Axes, bytes_per_us: float, flop_per_us: float) -> _RoofLine:
    return _RoofLine(0.0, bytes_per_us) if axes is _BANDWIDTH else _RoofLine(bytes_per_us, flop_per_us or math.inf)


def _bend(roof: _RoofLine, across: LogScale, up: LogScale) -> float:
    """The place along the x axis where a roof becomes flat, or meets the top or the right side of the chart."""
    return min(min(roof.flat, up.high) / roof.slope if roof.slope else across.low, across.high)


def _end(roof: _RoofLine, across: LogScale, up: LogScale) -> tuple[float, float]:
    """The point (x, y), in the chart's units, at which a roof's caption ends."""
    return (across.end, up(roof.flat) - 4) if roof.flat < math.inf else (across(_bend(roof, across, up)) - 8, TOP + 8)


def _path(roof: _RoofLine, across: LogScale, up: LogScale) -> str:
    bend = _bend(roof, across, up)
    rise = f"M{across.start:g},{up(roof.at(across.low)):g}L{across(bend):g},{up(roof.at(bend)):g}"
    return f"{rise}H{across.end:g}" if roof.flat < math.inf else rise


def _rate(axes: _Axes, point: _Point, us: float) -> float:
    """Work in a µs; of times that no clock shows, that of the shortest that one does."""
    return axes.amount(point.work) / max(us, _SHORTEST_US)


def _reading(
    section: Section, axes: _Axes, point: _Point, across: LogScale, up: LogScale, roof: _RoofLine | None
) -> Reading:
    timed = sorted(point.facts.timed.items(), key=lambda entry: entry[1].us)
    lines = []
    for name, one in timed:
        rate = _rate(axes, point, one.us)
        share = f", {percent(rate / roof.at(point.x))} of the roof" if roof is not None else ""
        lines.append((name, f"{si(rate * _PER_SECOND)}{axes.y_unit}", f"{microseconds(one.us)} µs{share}"))
    title = pairs({name: dimension(point.facts.problem.dims.get(name, "")) for name in section.varying})
    best = _rate(axes, point, timed[0][1].us)
    return Reading(across(point.x), title, tuple(lines), y=up(best))

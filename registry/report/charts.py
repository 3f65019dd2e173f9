"""Charts: axes, lines and the texts shown at the pointer, in the chart's own units; a template draws them as SVG.

One kind shows time against the dynamic dimension (rows, tokens): each implementation's best, and the floor. The other
shows how fast searches came close to their best.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .facts import ProblemFacts, Section
from .figures import Descent, percentile
from .formats import dimension, microseconds, pairs, percent
from .scales import LogScale, Tick

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 12.0, 40.0

_CHARACTER = 6.6
"""Width of a label's character, in the chart's units."""
_FLOOR = "floor"
_REGRETS = ((0.001, "≤ 0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%"), (10.0, "1000%"))
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_MOST_READINGS = 200


class Marker(NamedTuple):
    """A dot at one measured time; hollow when the time was not paired with the winner's in the finals."""

    x: float
    y: float
    hollow: bool


class Line(NamedTuple):
    """A series: its name (an implementation, or ``floor``), its path (SVG's ``d``) and its markers."""

    name: str
    path: str
    markers: Sequence[Marker] = ()


class Reading(NamedTuple):
    """The text shown while the pointer is over a band of the chart: a title, and (series, value, detail) lines.

    With ``y`` it belongs to that place instead of to a band.
    """

    x: float
    title: str
    lines: tuple[tuple[str, str, str], ...]
    left: float = LEFT
    width: float = 0.0
    y: float | None = None


class Caption(NamedTuple):
    """A text in a chart, which ends at ``x`` and stands above ``y``."""

    x: float
    y: float
    text: str


class Chart(NamedTuple):
    """A chart: axes, lines, captions, and the texts shown under the pointer."""

    title: str
    x_label: str
    y_label: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    lines: Sequence[Line]
    readings: Sequence[Reading]
    captions: Sequence[Caption] = ()


def x_dimension(section: Section) -> str | None:
    """The dynamic dimension with the most values, for the horizontal axis. None if none varies."""
    values: dict[str, set[float]] = defaultdict(set)
    for facts in section.problems:
        for name, value in facts.problem.dims.items():
            if name not in facts.problem.static and isinstance(value, int | float) and not isinstance(value, bool):
                values[name].add(value)
    varying = [name for name in values if len(values[name]) > 1]
    return max(varying, key=lambda name: len(values[name]), default=None)


def time_charts(section: Section) -> tuple[list[Chart], int]:
    """(charts, number of sets that are not drawn): a chart for each set of the other dimensions, the most sizes first.

    A set with a single size is not drawn, since it has no line.
    """
    x_name = x_dimension(section)
    if x_name is None:
        return [], 0
    groups: dict[str, list[tuple[float, ProblemFacts]]] = defaultdict(list)
    for facts in section.problems:
        size = facts.problem.dims.get(x_name, 0)
        if facts.timed and isinstance(size, int | float) and size > 0:
            others = {n: dimension(facts.problem.dims.get(n, "")) for n in section.varying if n != x_name}
            groups[pairs(others) if others else pairs(section.constant)].append((float(size), facts))
    drawn = {title: group for title, group in groups.items() if len({size for size, _ in group}) > 1}
    ordered = sorted(drawn.items(), key=lambda entry: -len(entry[1]))
    return [_time_chart(title, group, x_name) for title, group in ordered], len(groups) - len(drawn)


def _time_chart(title: str, group: list[tuple[float, ProblemFacts]], x_name: str) -> Chart:
    group.sort(key=lambda entry: entry[0])
    sizes = [size for size, _ in group]
    floors = [(size, us) for size, facts in group if (us := facts.floor_us) is not None]
    times = [timed.us for _, facts in group for timed in facts.timed.values()]
    across = LogScale.around(sizes, LEFT + 16, WIDTH - RIGHT - 16, margin=1.0)
    up = LogScale.around([*times, *(us for _, us in floors)], HEIGHT - BOTTOM, TOP)
    lines = [Line(_FLOOR, _path((across(size), up(us)) for size, us in floors))] if floors else []
    for name in sorted({name for _, facts in group for name in facts.timed}):
        timed = [(size, facts.timed[name]) for size, facts in group if name in facts.timed]
        markers = [Marker(across(size), up(one.us), not one.in_finals) for size, one in timed]
        lines.append(Line(name, _path((marker.x, marker.y) for marker in markers), markers))
    readings = _banded([_time_reading(across(size), facts, x_name) for size, facts in group])
    return Chart(title, x_name, "median time", across.value_ticks(sizes, _CHARACTER), up.ticks(), lines, readings)


def _time_reading(x: float, facts: ProblemFacts, x_name: str) -> Reading:
    lines = [
        (name, f"{microseconds(timed.us)} µs", pairs(timed.config) if timed.config else "")
        for name, timed in sorted(facts.timed.items(), key=lambda entry: entry[1].us)
    ]
    if facts.floor_us is not None:
        lines.append((_FLOOR, f"{microseconds(facts.floor_us)} µs", ""))
    return Reading(x, f"{x_name} = {facts.problem.dims[x_name]}", tuple(lines))


def descent_chart(descents: Sequence[Descent]) -> Chart | None:
    """The chart of each problem's regret, their median and 90th percentile, by trial number. None without descents."""
    last = max((descent.trials for descent in descents), default=0)
    if last < 2:
        return None
    worst = max((regret for descent in descents for _, regret in descent.steps), default=0.0)
    up = LogScale(_REGRETS[0][0], min(max(worst, 0.1), _REGRETS[-1][0]), HEIGHT - BOTTOM, TOP)
    found: list[tuple[int, float, float]] = []
    for number in range(1, last + 1):
        regrets = [regret for descent in descents if (regret := descent.at(number)) is not None]
        if len(regrets) * 2 > len(descents):
            found.append((number, percentile(regrets, 0.5), percentile(regrets, 0.9)))
    lines = [Line("one", _stairs(descent.steps, last, up)) for descent in descents]
    lines.append(Line("upper", _stairs([(number, upper) for number, _, upper in found], last, up)))
    lines.append(Line("middle", _stairs([(number, middle) for number, middle, _ in found], last, up)))
    readings = [
        Reading(
            _across(number, last),
            f"after {number} trials",
            (("middle", percent(middle), "median"), ("upper", percent(upper), "90th percentile")),
        )
        for number, middle, upper in found[:: math.ceil(last / _MOST_READINGS)]
    ]
    step = next((step for step in _STEPS if last / step <= 8), last)
    x_ticks = [Tick(_across(number, last), str(number)) for number in (1, *range(max(step, 2), last + 1, step))]
    y_ticks = [Tick(up(value), label) for value, label in _REGRETS if value <= up.high]
    return Chart("", "trials", "above the final best", x_ticks, y_ticks, lines, _banded(readings))


def _across(number: int, last: int) -> float:
    return round(LEFT + (number - 1) / (last - 1) * (WIDTH - RIGHT - LEFT), 1)


def _stairs(steps: Iterable[tuple[int, float]], last: int, up: LogScale) -> str:
    path, level = "", -1.0
    for number, regret in steps:
        x, y = _across(number, last), up(max(regret, up.low))
        if y != level:
            path += f"H{x:g}V{y:g}" if path else f"M{x:g},{y:g}"
        level = y
    return path and f"{path}H{WIDTH - RIGHT:g}"


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _banded(readings: Sequence[Reading]) -> list[Reading]:
    """The readings, each with the band of the chart that is nearest to its place."""
    middles = [(one.x + other.x) / 2 for one, other in itertools.pairwise(readings)]
    edges = itertools.pairwise([LEFT, *middles, WIDTH - RIGHT])
    return [
        reading._replace(left=round(left, 1), width=round(right - left, 1))
        for reading, (left, right) in zip(readings, edges, strict=True)
    ]

"""Charts of time against the dynamic dimension (rows, tokens): each implementation's best, and the floor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from .chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Line, Marker, Reading, bands, path
from .facts import ProblemFacts, Section
from .formats import dimension, microseconds, pairs
from .scales import LogScale

_CHARACTER = 6.6
"""Width of a label's character."""

_FLOOR = "floor"


def x_dimension(section: Section) -> str | None:
    """The dynamic dimension with the most values, for the horizontal axis. None where none varies."""
    values: dict[str, set[float]] = defaultdict(set)
    for facts in section.problems:
        for name, value in facts.problem.dims.items():
            if name not in facts.problem.static and isinstance(value, int | float) and not isinstance(value, bool):
                values[name].add(value)
    varying = [name for name in values if len(values[name]) > 1]
    return max(varying, key=lambda name: len(values[name]), default=None)


def time_charts(section: Section) -> tuple[list[Chart], int]:
    """(charts, number of sets of the other dimensions that are not drawn); a chart per set, those with most sizes
    first.

    A set of dimensions with a single size is not drawn: one size makes no line.
    """
    x_name = x_dimension(section)
    if x_name is None:
        return [], 0
    groups: dict[str, list[ProblemFacts]] = defaultdict(list)
    for facts in section.problems:
        if facts.timed and _x(facts, x_name) > 0:
            others = {n: dimension(facts.problem.dims.get(n, "")) for n in section.varying if n != x_name}
            groups[pairs(others) if others else pairs(section.constant)].append(facts)
    drawn = {title: group for title, group in groups.items() if len({_x(facts, x_name) for facts in group}) > 1}
    ordered = sorted(drawn.items(), key=lambda entry: -len(entry[1]))
    return [_time_chart(title, group, x_name) for title, group in ordered], len(groups) - len(drawn)


def _time_chart(title: str, group: Iterable[ProblemFacts], x_name: str) -> Chart:
    ordered = sorted(group, key=lambda facts: _x(facts, x_name))
    sizes = [_x(facts, x_name) for facts in ordered]
    times = [timed.us for facts in ordered for timed in facts.timed.values()]
    times += [floor for facts in ordered if (floor := facts.floor_us) is not None]
    across = LogScale.around(sizes, LEFT + 16, WIDTH - RIGHT - 16, margin=1.0)
    up = LogScale.around(times, HEIGHT - BOTTOM, TOP)
    return Chart(
        title,
        x_name,
        "median time",
        tuple(across.value_ticks(sizes, _CHARACTER)),
        tuple(up.time_ticks()),
        tuple(_time_lines(ordered, x_name, across, up)),
        tuple(_time_readings(ordered, x_name, across)),
    )


def _time_lines(group: Sequence[ProblemFacts], x_name: str, across: LogScale, up: LogScale) -> Iterable[Line]:
    floor = [(across(_x(facts, x_name)), up(us)) for facts in group if (us := facts.floor_us) is not None]
    if floor:
        yield Line(_FLOOR, path(floor))
    for name in sorted({name for facts in group for name in facts.timed}):
        markers = tuple(
            Marker(across(_x(facts, x_name)), up(timed.us), not timed.in_finals)
            for facts in group
            if (timed := facts.timed.get(name)) is not None
        )
        yield Line(name, path([(marker.x, marker.y) for marker in markers]), markers)


def _time_readings(group: Sequence[ProblemFacts], x_name: str, across: LogScale) -> Iterable[Reading]:
    places = [across(_x(facts, x_name)) for facts in group]
    for place, facts, (left, width) in zip(places, group, bands(places), strict=True):
        lines = [
            (name, f"{microseconds(timed.us)} µs", pairs(timed.config) if timed.config else "")
            for name, timed in sorted(facts.timed.items(), key=lambda entry: entry[1].us)
        ]
        floor = facts.floor_us
        if floor is not None:
            lines.append((_FLOOR, f"{microseconds(floor)} µs", ""))
        title = f"{x_name} = {facts.problem.dims[x_name]}"
        yield Reading(place, left, width, title, tuple(lines))


def _x(facts: ProblemFacts, name: str) -> float:
    value = facts.problem.dims.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0

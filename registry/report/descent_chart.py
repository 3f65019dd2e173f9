"""The chart of regret against the number of trials: how fast searches came close to their best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from .chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Line, Point, Reading, path
from .figures import Descent, percentile
from .formats import percent
from .scales import LogScale, Tick

_SMALLEST_REGRET = 0.001
_LARGEST_REGRET = 10.0
_MOST_READINGS = 200


def descent_chart(descents: Sequence[Descent]) -> Chart | None:
    """The chart of each problem's regret, their median and 90th percentile, by trial number. None without descents."""
    last = max((descent.trials for descent in descents), default=0)
    if last < 2:
        return None
    worst = max((regret for descent in descents for _, regret in descent.steps), default=0.0)
    up = LogScale(_SMALLEST_REGRET, min(max(worst, 0.1), _LARGEST_REGRET), HEIGHT - BOTTOM, TOP)
    ticks = [(0.001, "≤ 0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%"), (10.0, "1000%")]
    middle, upper = _percentiles(descents, last, 0.5), _percentiles(descents, last, 0.9)
    lines = [Line("one", _stairs(descent.steps, last, up)) for descent in descents]
    lines += [Line("upper", _stairs(_changes(upper), last, up)), Line("middle", _stairs(_changes(middle), last, up))]
    return Chart(
        "",
        "trials",
        "above the final best",
        tuple(Tick(_across(number, last), str(number)) for number in _trial_ticks(last)),
        tuple(Tick(up(value), label) for value, label in ticks if value <= up.high),
        tuple(lines),
        tuple(_descent_readings(middle, upper, last)),
    )


def _percentiles(descents: Sequence[Descent], last: int, share: float) -> Mapping[int, float]:
    """Trial number -> percentile of the regrets, once most problems have found something right."""
    found: dict[int, float] = {}
    for number in range(1, last + 1):
        regrets = [regret for descent in descents if (regret := descent.at(number)) is not None]
        if len(regrets) * 2 > len(descents):
            found[number] = percentile(regrets, share)
    return found


def _changes(values: Mapping[int, float]) -> list[tuple[int, float]]:
    numbers = list(values)
    return [
        (number, values[number])
        for place, number in enumerate(numbers)
        if place == 0 or values[number] != values[numbers[place - 1]]
    ]


def _descent_readings(middle: Mapping[int, float], upper: Mapping[int, float], last: int) -> Iterable[Reading]:
    stride = math.ceil(last / _MOST_READINGS)
    width = (WIDTH - RIGHT - LEFT) / (last - 1) * stride
    for number in list(middle)[::stride]:
        x = _across(number, last)
        lines = (("middle", percent(middle[number]), "median"), ("upper", percent(upper[number]), "90th percentile"))
        yield Reading(x, round(x - width / 2, 1), round(width, 1), f"after {number} trials", lines)


def _stairs(steps: Sequence[tuple[int, float]], last: int, up: LogScale) -> str:
    points: list[Point] = []
    for number, regret in steps:
        x, y = _across(number, last), up(max(regret, _SMALLEST_REGRET))
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    if points:
        points.append((WIDTH - RIGHT, points[-1][1]))
    return path(points)


def _across(number: int, last: int) -> float:
    return round(LEFT + (number - 1) / (last - 1) * (WIDTH - RIGHT - LEFT), 1)


def _trial_ticks(last: int) -> list[int]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, last) if last / step <= 8)
    return [1, *range(step if step > 1 else 2, last + 1, step)]

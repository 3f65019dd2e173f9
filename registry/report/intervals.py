"""Drawings of the finals' ratios with their intervals, on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuning_db import Decision, is_noise

from .facts import Section
from .formats import ratio
from .scales import LogScale

_NARROWEST = (0.9, 1.1)
_WIDEST = (0.1, 100.0)


@dataclass(frozen=True)
class Drawn:
    """A ratio with its interval, drawn in a box of 120 by 16; ``one`` is the place of the ratio 1."""

    low: float
    value: float
    high: float
    one: float
    noise: tuple[float, float]
    text: str
    clear: bool


def intervals(section: Section) -> Mapping[str, Drawn]:
    """Problem key -> its drawn ratio, on one axis for the whole section."""
    decisions = [facts.decision for facts in section.decided if facts.decision and (facts.decision.ratio or 0) > 0]
    ends = [value for one in decisions for value in (one.lo, one.ratio, one.hi) if value and value > 0]
    if not ends:
        return {}
    low, high = max(min(_NARROWEST[0], *ends), _WIDEST[0]), min(max(_NARROWEST[1], *ends), _WIDEST[1])
    scale = LogScale(low, high, 3.0, 117.0)
    return {one.problem.key: _drawn(one, scale) for one in decisions}


def _drawn(decision: Decision, scale: LogScale) -> Drawn:
    value, noise = decision.ratio or 1.0, max(decision.aa or 0.0, 0.0)
    low = value if decision.lo is None else decision.lo
    high = value if decision.hi is None else decision.hi
    band = (scale(1 / (1 + noise)), scale(1 + noise))
    told = "noise" if is_noise(decision.lo, decision.hi) else ratio(value)
    text = f"{told} ({ratio(low)} to {ratio(high)})"
    return Drawn(scale(low), scale(value), scale(high), scale(1.0), band, text, low > 1 and value > 1 + noise)

"""The finals' ratios with their intervals, on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .facts import Section
from .formats import ratio
from .scales import LogScale


@dataclass(frozen=True)
class Interval:
    """A ratio with its interval, drawn in a box of 120 by 16; ``one`` is where no difference lies."""

    low: float
    value: float
    high: float
    one: float
    noise: tuple[float, float]
    text: str
    clear: bool


def intervals(section: Section) -> Mapping[str, Interval]:
    """By problem key, on one axis for the whole section."""
    decisions = [facts.decision for facts in section.decided if facts.decision and facts.decision.ratio]
    ends = [value for one in decisions for value in (one.lo, one.ratio, one.hi) if value]
    if not ends:
        return {}
    scale = LogScale(min(0.9, *ends), min(max(1.1, *ends), 100.0), 3.0, 117.0)
    drawn = {}
    for one in decisions:
        value, noise = float(one.ratio or 1.0), one.aa or 0.0
        low, high = one.lo or value, one.hi or value
        clear = low > 1 and value > 1 + noise
        band = (scale(1 / (1 + noise)), scale(1 + noise))
        text = f"{ratio(value)} ({ratio(low)} to {ratio(high)})"
        drawn[one.problem.key] = Interval(scale(low), scale(value), scale(high), scale(1.0), band, text, clear)
    return drawn

"""The leaderboard of an op on a hardware: how close each implementation comes to the best, over all problems."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .facts import ProblemFacts, Section
from .figures import geometric_mean


@dataclass(frozen=True)
class LeaderboardRow:
    """An implementation's place among those of its op.

    ``score`` is the mean over all decided problems of the best time over its own, a problem without a time counting 0.
    ``over_best`` is the geometric mean, over the problems where it has a time, of its time over the best, and ``worst``
    the largest of these. ``of_floor`` is the median of the floor over its time. ``met`` counts problems with a time in
    the finals, ``wins`` those that it won.
    """

    rank: int
    implementation: str
    score: float
    wins: int
    met: int
    over_best: float | None
    worst: float | None
    of_floor: float | None


def leaderboard(section: Section) -> list[LeaderboardRow]:
    """The standings, best score first. Problems whose finals were noise are left out, as nobody's time is known."""
    told = [facts for facts in section.decided if facts.decision is not None and not facts.decision.is_noise]
    found = [_standing(name, told) for name in section.implementations] if told else []
    ordered = sorted(found, key=lambda one: (-one.score, one.implementation))
    return [replace(one, rank=rank) for rank, one in enumerate(ordered, 1)]


def _standing(name: str, told: Sequence[ProblemFacts]) -> LeaderboardRow:
    ratios = [ratio for facts in told if (ratio := facts.speedup(name)) is not None and ratio > 0]
    shares = [
        facts.floor_us / facts.timed[name].us
        for facts in told
        if facts.floor_us is not None and facts.speedup(name) is not None and facts.timed[name].us > 0
    ]
    return LeaderboardRow(
        0,
        name,
        # finals may find another candidate faster than the winner, by less than their noise
        sum(min(1.0, 1 / ratio) for ratio in ratios) / len(told),
        sum(facts.decision is not None and facts.decision.candidate.implementation == name for facts in told),
        len(ratios),
        geometric_mean(ratios),
        max(ratios, default=None),
        statistics.median(shares) if shares else None,
    )

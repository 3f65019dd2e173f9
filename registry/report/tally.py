"""The tally of a search: its best times, the trials at which they improved, and the outcomes of its trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuning_db.searches import TrialFigures

GIVEN_UP = "ok, given up"
"""The outcome of trials of status ``ok`` that were too slow to be timed completely."""

_LONGEST_MESSAGE = 240


@dataclass(frozen=True)
class Best:
    """An implementation's best time in a search, and the configuration that had it."""

    us: float
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Tally:
    """The trials of a search, counted.

    ``steps`` are (number of the trial from 1, µs) wherever the best so far improved. ``outcomes`` counts by
    (implementation, status or ``GIVEN_UP``), ``failures`` by (implementation, status, message).
    """

    trials: int = 0
    best: Mapping[str, Best] = field(default_factory=dict)
    steps: Sequence[tuple[int, float]] = ()
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failures: Mapping[tuple[str, str, str], int] = field(default_factory=dict)


def tally(attempts: Iterable[TrialFigures]) -> Tally:
    """The tally of trials, oldest first."""
    number, fastest = 0, math.inf
    best: dict[str, Best] = {}
    steps: list[tuple[int, float]] = []
    outcomes: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, str, str]] = Counter()
    for number, (candidate, status, censored, us, message) in enumerate(attempts, 1):
        name = candidate.implementation
        outcomes[name, status if status != "ok" or not censored else GIVEN_UP] += 1
        if status != "ok":
            failures[name, status, _first_line(message)] += 1
        elif us is not None and not censored and 0 < us < math.inf:
            if name not in best or us < best[name].us:
                best[name] = Best(us, candidate.config)
            if us < fastest:
                fastest = us
                steps.append((number, us))
    return Tally(number, best, steps, outcomes, failures)


@lru_cache(maxsize=1024)
def _first_line(message: str) -> str:
    text = " ".join(message.split()) or "(no message)"
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"

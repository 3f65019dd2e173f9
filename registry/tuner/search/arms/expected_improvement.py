"""The arm that models times: the untried candidate with the largest expected improvement under Gaussian processes."""

from __future__ import annotations

import math
import random

import numpy as np

from ....points import Numbers
from ..tried import Tried
from .arm import Arm
from .surrogate import Surrogate

_CLIP = 1.0
"""The model sees nothing slower than e times the implementation's best: how bad the bad are says little of the good."""

_MOST_SCORED = 2_500
_MOST_LEARNT = 160
_MOST_IN_FLIGHT = 32


class ExpectedImprovement(Arm):
    """The untried candidate whose expected improvement on the best log time is largest; a random one of equals."""

    def __init__(self, tried: Tried, random: random.Random, seed: int) -> None:
        super().__init__(tried, random, seed)
        self._surrogate = Surrogate(tried.space, seed)
        self._learnt = 0

    def propose(self) -> int | None:
        tried = self.tried
        if not tried.logs:
            return None
        best = tried.best
        if self._learnt != tried.told:
            self._surrogate.fit(self._lessons())
            self._learnt = tried.told
        numbers = self._scored()
        improvements = self._surrogate.improvements(numbers, list(tried.pending)[-_MOST_IN_FLIGHT:], best)
        self.expected_gain = float(improvements.max())
        return int(numbers[self.random.choice(np.flatnonzero(improvements >= self.expected_gain))])

    def _lessons(self) -> dict[int, float]:
        """Log times for the model: clipped, a failure as bad as the bad; the fastest and the newest if too many."""
        tried, space = self.tried, self.tried.space
        worst = tried.best + _CLIP
        most: dict[str, float] = {}
        for number, log in tried.logs.items():
            name = space.block_of(number).name
            most[name] = min(most.get(name, math.inf), log + _CLIP)
        logs = {number: min(log, most[space.block_of(number).name]) for number, log in tried.logs.items()}
        logs |= {number: most.get(space.block_of(number).name, worst) for number in tried.failed}
        if len(logs) <= _MOST_LEARNT:
            return logs
        fastest = sorted(logs, key=lambda number: logs[number])[: _MOST_LEARNT // 2]
        newest = [number for number in reversed(logs) if number not in set(fastest)][: _MOST_LEARNT // 2]
        return {number: logs[number] for number in (*fastest, *newest)}

    def _scored(self) -> Numbers:
        """The untried candidates; of more than 2500 a random part, and the neighbours of the fastest."""
        untried = np.flatnonzero(self.tried.untried)
        if len(untried) <= _MOST_SCORED:
            return untried
        near = [number for distance in (1, 2) for number in self.tried.near_best(distance)]
        part = untried[self.random.sample(range(len(untried)), _MOST_SCORED)]
        return np.unique(np.concatenate([np.array(near, dtype=np.int64), part]))

"""The tuner's own sampler: the largest expected improvement under a model of the times, and neighbours of the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from ....points import PointNumbers
from ....space import Space
from ..joint_space import JointSpace
from .distinct import DistinctSampler
from .surrogate import Surrogate

_TURNS = 5
_NEIGHBOUR_TURN = 3
"""The proposal of each five that is a neighbour of the best, chosen by replaying landscapes, see docs/search.md."""

_CLIP = 1.0
"""Log times are clipped at the implementation's best plus this: how slow bad candidates are says little."""

_MOST_SCORED = 2_500
_MOST_LEARNT = 160
_MOST_IN_FLIGHT = 32


class RegistrySampler(DistinctSampler):
    """Proposes the untried candidate with the largest expected improvement on the best log time, four times of five.

    The model has a Gaussian process for every implementation. Every fifth proposal is a random untried candidate at L1
    distance 1, or else 2, from one of the three fastest. Objectives are times: positive, less is better.
    """

    def __init__(
        self, space: JointSpace | Mapping[str, Space], *, starts: Iterable[int] | None = None, seed: int | None = None
    ) -> None:
        super().__init__(space, starts=starts, seed=seed)
        self._surrogate = Surrogate(self.space, self.random.getrandbits(32) if seed is None else seed)
        self._learnt = 0

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> int | None:
        if self.proposed % _TURNS == _NEIGHBOUR_TURN:
            return self._neighbour()
        return self._most_promising()

    def _neighbour(self) -> int | None:
        for distance in (1, 2):
            if near := self.tried.near_best(distance):
                return self.random.choice(near)
        return None

    def _most_promising(self) -> int | None:
        """A random one of the candidates whose expected improvement is largest."""
        tried = self.tried
        if not tried.logs:
            return None
        if self._learnt != tried.told:
            self._surrogate.fit(self._lessons())
            self._learnt = tried.told
        numbers = self._scored()
        improvements = self._surrogate.improvements(numbers, list(tried.pending)[-_MOST_IN_FLIGHT:], tried.best)
        self.expected_gain = float(improvements.max())
        return int(numbers[self.random.choice(np.flatnonzero(improvements >= self.expected_gain))])

    def _lessons(self) -> dict[int, float]:
        """Log times for the model, clipped; a failure has the worst. If too many, the fastest and the newest."""
        tried, space = self.tried, self.space
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

    def _scored(self) -> PointNumbers:
        """The untried candidates; of more than 2500 a random part, and the neighbours of the fastest."""
        untried = np.flatnonzero(self.tried.untried)
        if len(untried) <= _MOST_SCORED:
            return untried
        near = [number for distance in (1, 2) for number in self.tried.near_best(distance)]
        part = untried[self.random.sample(range(len(untried)), _MOST_SCORED)]
        return np.unique(np.concatenate([np.array(near, dtype=np.int64), part]))

"""Which candidate to try next, and when enough is known: one problem's joint space, each candidate at most once.

After defaults, seeds and a few random candidates three kinds of proposals take turns: the largest expected improvement
under a model of the times, an untried neighbour of the best, and what TPE suggests. The mix was chosen by replaying
measured landscapes; docs/search.md has the evidence.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from ...dispatch.plans.plan import Candidate
from ..planning.problems import ProblemPlan
from .joint_space import JointSpace, Numbers
from .study import Study
from .surrogate import Surrogate

Arm = Literal["model", "neighbour", "tpe", "random"]

MIX: tuple[Arm, ...] = ("model", "model", "neighbour", "model", "model", "tpe")
"""Whose turn it is, round and round."""

EXHAUST = 32
"""A space this small is tried whole when nobody asks for more trials."""

_RANDOM_STARTS = 8
_FEWEST_RANDOM = 3
"""Where seeds stand in for random candidates."""
_SEEDS_KEPT = 5
_BEST_KEPT = 3
_CLIP = 1.0
"""The model sees nothing slower than e times the implementation's best: how bad the bad are says little of the good."""

_MOST_SCORED = 2_500
_MOST_LEARNT = 160
_MOST_IN_FLIGHT = 32

_NOISE = 0.005
_PATIENCE = 8
_PROMISE = 0.005
"""The search has settled when the last trials brought no gain beyond noise and the model expects less than this."""


class Searcher:
    """Proposes candidates of one problem; the only user of the model and of Optuna.

    ``seeds`` are candidates worth an early try, best first (winners of neighbouring problems, a stale winner).
    A space of at most ``exhaust`` candidates is tried whole.
    """

    def __init__(
        self,
        plan: ProblemPlan,
        *,
        seeds: Sequence[Candidate] = (),
        exhaust: int = EXHAUST,
        seed: int = 0,
        mix: Sequence[Arm] = MIX,
    ) -> None:
        self._space = JointSpace(plan)
        self._untried = np.ones(len(self._space), dtype=bool)
        self._left = len(self._space)
        self._random = random.Random(seed)
        self._seed = seed
        self._mix = tuple(mix)
        self._turn = 0
        self._pending: dict[int, bool] = {}  # is it one of ours, or did somebody else begin it
        self._logs: dict[int, float] = {}
        self._failed: dict[int, None] = {}
        self._exhaust = self._left <= exhaust
        self._starts = collections.deque(self._order_of_starts(plan, seeds))
        self._surrogate = Surrogate(self._space, seed)
        self._fresh = False
        self._study: Study | None = None
        self._promise = math.inf
        self._since_gain = 0

    @property
    def size(self) -> int:
        """Candidates not proposed yet."""
        return self._left

    @property
    def settled(self) -> bool:
        """Whether more trials are unlikely to gain anything that could be told from noise.

        Never while starts are left, and never before everything was proposed where the space is tried whole.
        """
        if self._left == 0:
            return True
        if self._exhaust or self._starts or not self._logs:
            return False
        patience = max(_PATIENCE, math.isqrt(len(self._space)))
        return min(self._since_gain, self._turn) >= patience and self._promise < _PROMISE

    def ask(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer, or none, when the space is exhausted."""
        return [self._space.candidates[self._take()] for _ in range(min(count, self._left))]

    def untried(self, candidate: Candidate) -> bool:
        """Whether it is valid here and nobody tried it or is trying it."""
        number = self._space.number(candidate)
        return number is not None and bool(self._untried[number])

    def reserve(self, candidate: Candidate) -> None:
        """Do not propose this one: somebody else has it tried."""
        number = self._space.number(candidate)
        if number is not None:
            self._mark(number, ours=False)

    def tell(self, candidate: Candidate, median_us: float | None) -> None:
        """A candidate's time; None when it failed. What was not asked for is learnt too (a stored or shared trial)."""
        number = self._space.number(candidate)
        if number is None:
            return
        self._mark(number, ours=False)
        asked = self._pending.pop(number)
        self._logs.pop(number, None)
        self._failed.pop(number, None)
        if median_us is None or not 0 < median_us < math.inf:
            self._failed[number] = None
        else:
            best = min(self._logs.values(), default=math.inf)
            self._logs[number] = math.log(median_us)
            self._since_gain = 0 if self._logs[number] < best - _NOISE else self._since_gain
        # what others paid for may bring news, but no news from it is no reason to stop
        self._since_gain += asked
        self._fresh = False
        if self._study is not None:
            self._study.finished(number, self._logs.get(number))

    # starts

    def _order_of_starts(self, plan: ProblemPlan, seeds: Sequence[Candidate]) -> list[int]:
        """Implementations without a space, defaults, seeds that differ, random points; all the rest when exhausting."""
        numbers = [number for default in plan.defaults() if (number := self._space.number(default)) is not None]
        starts = sorted(numbers, key=lambda number: self._space.block_of(number).size > 1)
        known = self._distinct(seeds)
        rest = list(range(len(self._space)))
        self._random.shuffle(rest)
        count = len(rest) if self._exhaust else max(_FEWEST_RANDOM, _RANDOM_STARTS - len(known))
        return starts + known + rest[:count]

    def _distinct(self, seeds: Iterable[Candidate]) -> list[int]:
        """At most five that are valid here, untried, and two steps or more from each other."""
        chosen: list[int] = []
        for seed in seeds:
            number = self._space.number(seed)
            if number is None or not self._untried[number] or len(chosen) == _SEEDS_KEPT:
                continue
            block, distances = self._space.distances_from(number)
            near = np.flatnonzero(distances < 2) + block.start
            if not set(near.tolist()) & set(chosen):
                chosen.append(number)
        return chosen

    # proposals

    def _take(self) -> int:
        number = self._next_start()
        if number is None:
            number = self._propose()
        self._mark(number, ours=True)
        return number

    def _mark(self, number: int, *, ours: bool) -> None:
        """It is being tried: nobody else shall propose it."""
        if self._untried[number]:
            self._untried[number] = False
            self._left -= 1
        if number in self._pending:
            return
        self._pending[number] = ours
        if self._study is not None and number not in self._logs and number not in self._failed:
            self._study.started(number)

    def _next_start(self) -> int | None:
        while self._starts:
            number = self._starts.popleft()
            if self._untried[number]:
                return number
        return None

    def _propose(self) -> int:
        arm = self._mix[self._turn % len(self._mix)]
        self._turn += 1
        number = None
        if arm == "model":
            number = self._expected_best()
        elif arm == "neighbour":
            number = self._neighbour()
        elif arm == "tpe":
            number = self._suggested()
        return self._any() if number is None else number

    def _any(self) -> int:
        return int(self._random.choice(np.flatnonzero(self._untried)))

    def _expected_best(self) -> int | None:
        """The largest expected improvement under the model."""
        if not self._logs:
            return None
        best = min(self._logs.values())
        if not self._fresh:
            self._surrogate.fit(self._learnt())
            self._fresh = True
        numbers = self._scored()
        improvements = self._surrogate.improvements(numbers, list(self._pending)[-_MOST_IN_FLIGHT:], best)
        self._promise = float(improvements.max())
        return int(numbers[self._random.choice(np.flatnonzero(improvements >= self._promise))])

    def _learnt(self) -> dict[int, float]:
        """Log times for the model: clipped, a failure as bad as the bad; the fastest and the newest if too many."""
        worst = min(self._logs.values()) + _CLIP
        most: dict[str, float] = {}
        for number, log in self._logs.items():
            name = self._space.block_of(number).name
            most[name] = min(most.get(name, math.inf), log + _CLIP)
        logs = {number: min(log, most[self._space.block_of(number).name]) for number, log in self._logs.items()}
        logs |= {number: most.get(self._space.block_of(number).name, worst) for number in self._failed}
        if len(logs) <= _MOST_LEARNT:
            return logs
        fastest = sorted(logs, key=lambda number: logs[number])[: _MOST_LEARNT // 2]
        newest = [number for number in reversed(logs) if number not in set(fastest)][: _MOST_LEARNT // 2]
        return {number: logs[number] for number in (*fastest, *newest)}

    def _scored(self) -> Numbers:
        """The untried; of very many a random part, and what is near the best."""
        untried = np.flatnonzero(self._untried)
        if len(untried) <= _MOST_SCORED:
            return untried
        near = [number for radius in (1, 2) for number in self._around_best(radius)]
        part = self._random.sample(untried.tolist(), _MOST_SCORED)
        return np.unique(np.array(near + part, dtype=np.int64))

    def _neighbour(self) -> int | None:
        """A random untried neighbour, at distance 1 or else 2, of one of the best three."""
        for radius in (1, 2):
            if near := self._around_best(radius):
                return self._random.choice(near)
        return None

    def _around_best(self, radius: int) -> list[int]:
        found: list[int] = []
        for centre in sorted(self._logs, key=lambda number: self._logs[number])[:_BEST_KEPT]:
            block, distances = self._space.distances_from(centre)
            untried = self._untried[block.start : block.stop]
            found += (np.flatnonzero((distances == radius) & untried) + block.start).tolist()
        return found

    def _suggested(self) -> int | None:
        """What TPE suggests; if that is invalid or tried, the nearest untried of the same implementation instead."""
        if self._study is None:
            self._study = self._told_study()
        name, places = self._study.suggestion()
        block = self._space.blocks[name]
        untried = np.flatnonzero(self._untried[block.start : block.stop])
        if not len(untried):
            return None
        distances = self._space.distances(block, places)[untried]
        return block.start + int(self._random.choice(untried[distances == distances.min()]))

    def _told_study(self) -> Study:
        """A study that knows all that is known: it is made when it is first asked."""
        study = Study(self._space, self._seed, _RANDOM_STARTS)
        for number, log in self._logs.items():
            study.finished(number, log)
        for number in self._failed:
            study.finished(number, None)
        for number in self._pending:
            study.started(number)
        return study

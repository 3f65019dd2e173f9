"""Which candidate to try next, and when enough is known: one problem's joint space, each candidate at most once.

After defaults, seeds and a few random candidates the arms take turns: the largest expected improvement under a model
of the times, an untried neighbour of the best, and TPE's suggestion. The mix was chosen by replaying measured
landscapes; docs/search.md has the evidence.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Iterable, Sequence

import numpy as np

from ...dispatch.plans.plan import Candidate
from ...space import MANY
from ..planning.problems import ProblemPlan
from .arms.arm import MakeArm
from .arms.expected_improvement import ExpectedImprovement
from .arms.neighbour import Neighbour
from .arms.tpe import Tpe
from .joint_space import JointSpace
from .tried import Tried

MIX: tuple[MakeArm, ...] = (
    ExpectedImprovement, ExpectedImprovement, Neighbour, ExpectedImprovement, ExpectedImprovement, Tpe,
)  # fmt: skip
"""The arms of the search in the order of their turns, round and round. An arm is added by a file and an entry here."""

EXHAUST = 32
"""A space with at most so many candidates is tried whole, unless the user gave a number of trials."""

_RANDOM_STARTS = 8
_FEWEST_RANDOM = 3
"""Random candidates at least, where seeds stand in for the others."""
_SEEDS_KEPT = 5

_NOISE = 0.005
_PATIENCE = 8
_PROMISE = 0.005
"""The search has settled when the last trials brought no gain beyond noise and the model expects less than this."""


class Searcher:
    """Proposes candidates of one problem.

    ``seeds`` are candidates worth an early try, best first (winners of neighbouring problems, a stale winner).
    A space of at most ``exhaust`` candidates is tried whole. ``mix``: the arms in the order of their turns.
    """

    def __init__(
        self,
        plan: ProblemPlan,
        *,
        seeds: Sequence[Candidate] = (),
        exhaust: int = EXHAUST,
        seed: int = 0,
        mix: Sequence[MakeArm] = MIX,
    ) -> None:
        self._space = JointSpace(plan)
        self._tried = Tried(self._space)
        self._random = random.Random(seed)
        self._exhaust = len(self._space) <= exhaust
        self._starts = collections.deque(self._order_of_starts(plan, seeds))
        arms = {make: make(self._tried, self._random, seed) for make in dict.fromkeys(mix)}
        self._turns = tuple(arms[make] for make in mix)
        self._turn = 0
        self._since_gain = 0

    @property
    def size(self) -> int:
        """Candidates not proposed yet."""
        return self._tried.left

    @property
    def settled(self) -> bool:
        """Whether more trials are unlikely to gain anything that could be told from noise.

        Never while starts are left, and never before everything was proposed where the space is tried whole.
        """
        if self.size == 0:
            return True
        if self._exhaust or self._starts or not self._tried.logs:
            return False
        patience = max(_PATIENCE, math.isqrt(len(self._space)))
        promise = min(arm.expected_gain for arm in self._turns)
        return min(self._since_gain, self._turn) >= patience and promise < _PROMISE

    def ask(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer, or none, when the space is exhausted."""
        return [self._space.candidate(self._take()) for _ in range(min(count, self.size))]

    def untried(self, candidate: Candidate) -> bool:
        """Whether the candidate is valid here and neither known nor being tried."""
        return self._tried.is_untried(candidate)

    def reserve(self, candidate: Candidate) -> None:
        """Do not propose this candidate: another problem's trial, or the run itself, has it tried."""
        number = self._space.number(candidate)
        if number is not None:
            self._tried.begin(number, asked=False)

    def tell(self, candidate: Candidate, median_us: float | None) -> None:
        """A candidate's time; None when it failed. A candidate that was not asked for is learnt too."""
        number = self._space.number(candidate)
        if number is None:
            return
        best = min((log for other, log in self._tried.logs.items() if other != number), default=math.inf)
        asked = self._tried.tell(number, median_us)
        if self._tried.logs.get(number, math.inf) < best - _NOISE:
            self._since_gain = 0
        # trials that others paid for may bring news, but no news from them is no reason to stop
        self._since_gain += asked

    def _order_of_starts(self, plan: ProblemPlan, seeds: Sequence[Candidate]) -> list[int]:
        """Implementations without a space, defaults, seeds that differ, random points; all the rest when exhausting."""
        numbers = [number for default in plan.defaults() if (number := self._space.number(default)) is not None]
        starts = sorted(numbers, key=lambda number: self._space.block_of(number).size > 1)
        known = self._distinct(seeds)
        count = len(self._space) if self._exhaust else max(_FEWEST_RANDOM, _RANDOM_STARTS - len(known))
        if len(self._space) > MANY:  # too many for a list
            return starts + known + self._random.sample(range(len(self._space)), min(count, len(self._space)))
        rest = list(range(len(self._space)))
        self._random.shuffle(rest)
        return starts + known + rest[:count]

    def _distinct(self, seeds: Iterable[Candidate]) -> list[int]:
        """At most five seeds that are valid here, untried, and two steps or more from each other."""
        chosen: list[int] = []
        for seed in seeds:
            number = self._space.number(seed)
            if number is None or not self._tried.untried[number] or len(chosen) == _SEEDS_KEPT:
                continue
            if not {number, *self._space.near(number, 1)} & set(chosen):
                chosen.append(number)
        return chosen

    def _take(self) -> int:
        number = self._next_start()
        if number is None:
            number = self._propose()
        self._tried.begin(number, asked=True)
        return number

    def _next_start(self) -> int | None:
        while self._starts:
            number = self._starts.popleft()
            if self._tried.untried[number]:
                return number
        return None

    def _propose(self) -> int:
        arm = self._turns[self._turn % len(self._turns)]
        self._turn += 1
        number = arm.propose()
        return int(self._random.choice(np.flatnonzero(self._tried.untried))) if number is None else number

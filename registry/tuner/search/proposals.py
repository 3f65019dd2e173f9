"""Which candidate to try next, and when enough is known: one problem's Optuna study over its joint space."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from ...dispatch.plans.plan import Candidate
from ..planning.problems import ProblemPlan
from .joint_space import JointSpace
from .parameters import state_of
from .studies import Studies

EXHAUST = 32
"""A space of at most this many candidates is tried whole, unless the user gave a number of trials."""

_RANDOM_STARTS = 8
_FEWEST_RANDOM = 3
"""The fewest random candidates, where seeds take the place of the others."""
_SEEDS_KEPT = 5

_NOISE = 0.005
_PATIENCE = 8
_PROMISE = 0.005
"""The search has settled when its last trials gained no more than noise and the model expects less than this gain."""


class Searcher:
    """Proposes candidates of one problem, each at most once: asks its study for them, and tells it of all trials.

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
        studies: Studies | None = None,
    ) -> None:
        studies = studies or Studies()
        self._implementations = {choice.implementation.name: choice.implementation for choice in plan.supported}
        self._space = JointSpace.of(plan)
        self._exhaust = len(self._space) <= exhaust
        starts = self._order_of_starts(plan, seeds, random.Random(seed))
        self._sampler = studies.sampler(self._space, starts=starts, seed=seed)
        self._tried = self._sampler.tried
        self.study = studies.create(plan, self._sampler)
        self._running: dict[int, optuna.Trial] = {}
        self._asked: set[int] = set()
        self._since_gain = 0

    @property
    def size(self) -> int:
        """Candidates not proposed yet."""
        return self._tried.left

    @property
    def settled(self) -> bool:
        """Whether more trials are unlikely to gain anything that could be told from noise.

        Never while starts are left, and never before everything was proposed where the space is tried whole, or where
        the sampler does not say what it expects to gain.
        """
        if self.size == 0:
            return True
        if self._exhaust or self._sampler.starting or not self._tried.logs:
            return False
        patience = max(_PATIENCE, math.isqrt(len(self._space)))
        return min(self._since_gain, self._sampler.proposed) >= patience and self._sampler.expected_gain < _PROMISE

    def ask(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer, or none, when the space is exhausted."""
        return [self._ask() for _ in range(min(count, self.size))]

    def untried(self, candidate: Candidate) -> bool:
        """Whether the candidate is valid here and neither known nor being tried."""
        number = self._number(candidate)
        return number is not None and bool(self._tried.untried[number])

    def reserve(self, candidate: Candidate) -> None:
        """Do not propose this candidate: its trial comes from outside of this search."""
        number = self._number(candidate)
        if number is not None and number not in self._running:
            self._begin(number)

    def tell(
        self,
        candidate: Candidate,
        median_us: float | None,
        *,
        status: str = "ok",
        censored: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Take in a trial's outcome, also of a candidate not asked for. ``notes``: attributes for the study's trial."""
        number = self._number(candidate)
        if number is None:
            return
        best = min((log for other, log in self._tried.logs.items() if other != number), default=math.inf)
        self._end(number, state_of(status, median_us, censored), median_us, notes or {})
        if self._tried.logs.get(number, math.inf) < best - _NOISE:
            self._since_gain = 0
        # trials for other problems may bring a gain, but no gain from them is no reason to stop
        self._since_gain += number in self._asked
        self._asked.discard(number)

    def close(self) -> None:
        """End the trials of candidates that were asked for and dropped: nothing is being tried any more."""
        for trial in self._running.values():
            trial.set_user_attr("status", "dropped")
            self.study.tell(trial, state=TrialState.FAIL)
        self._running.clear()

    def _ask(self) -> Candidate:
        trial = self.study.ask()
        name, config = self._space.suggest(trial)
        number = self._space.number(name, config)
        assert number is not None  # a distinct sampler suggests valid candidates alone
        self._running[number] = trial
        self._asked.add(number)
        self._tried.begin(number)
        return Candidate(self._implementations[name], config)

    def _begin(self, number: int) -> None:
        self.study.enqueue_trial(self._space.parameters(number))
        trial = self._running[number] = self.study.ask()
        self._space.suggest(trial)
        self._tried.begin(number)

    def _end(self, number: int, state: TrialState, median_us: float | None, notes: Mapping[str, Any]) -> None:
        if number not in self._running:
            self._begin(number)
        trial = self._running.pop(number)
        for name, value in notes.items():
            trial.set_user_attr(name, value)
        if state == TrialState.PRUNED and median_us is not None:
            trial.report(median_us, step=0)
        self.study.tell(trial, median_us if state == TrialState.COMPLETE else None, state=state)
        self._tried.follow(self.study)

    def _number(self, candidate: Candidate) -> int | None:
        return self._space.number(candidate.implementation.name, candidate.config)

    def _order_of_starts(self, plan: ProblemPlan, seeds: Sequence[Candidate], chance: random.Random) -> list[int]:
        """Numbers to try first: defaults (first those without a space), distinct seeds, random candidates.

        When the space is tried whole, the random ones are all others.
        """
        numbers = [number for default in plan.defaults() if (number := self._number(default)) is not None]
        starts = sorted(numbers, key=lambda number: self._space.block_of(number).size > 1)
        known = self._distinct(seeds)
        size = len(self._space)
        count = size if self._exhaust else min(size, max(_FEWEST_RANDOM, _RANDOM_STARTS - len(known)))
        return starts + known + chance.sample(range(size), count)

    def _distinct(self, seeds: Iterable[Candidate]) -> list[int]:
        """At most five seeds that are valid here, untried, and two steps or more from each other."""
        chosen: list[int] = []
        for number in map(self._number, seeds):
            if number is None or len(chosen) == _SEEDS_KEPT:
                continue
            if not {number, *self._space.near(number, 1)} & set(chosen):
                chosen.append(number)
        return chosen

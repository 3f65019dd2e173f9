"""The search of one problem: what is asked, in flight, known; when it is over; who goes to the finals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...artifact import Artifact, Variant
from ...dispatch.plans.plan import Candidate
from ...problem import Arguments, Problem
from ..jobs import Entrant
from ..limits import PRE_FINALISTS, Budget
from ..planning.distance import seeds_of
from ..planning.input_specs import arguments_of
from ..planning.problems import ProblemPlan
from ..planning.twin import twin_of
from ..planning.variants import variants_at, variants_of
from .proposals import EXHAUST, Searcher


@dataclass
class Waiting:
    """A candidate asked for whose variants are not all compiled. ``fault``: why it has no launch at all.

    ``extra``: variants that are of use in verifying it, and that it can do without.
    """

    candidate: Candidate
    variants: tuple[Variant, ...] = ()
    extra: tuple[Variant, ...] = ()
    fault: str = ""


class ProblemSearch:
    """State of one problem between planning and finals."""

    def __init__(
        self, plan: ProblemPlan, budget: Budget, seeds: Sequence[Candidate], seed: int, stored: Candidate | None = None
    ) -> None:
        self.plan = plan
        self._stored = stored
        self.seed = seed
        self.floor_us: float | None = None
        self.waiting: list[Waiting] = []
        self.on_device = 0
        self.done = 0
        self.seconds = 0.0
        self.statuses: Counter[str] = Counter()
        self._budget = budget
        # a stored winner is tried beside the budget and the wanted implementations: it is what has to be beaten
        self._most = budget.most_trials + (stored is not None)
        exhaust = EXHAUST if budget.trials is None else budget.trials
        self._searcher = Searcher(plan, seeds=seeds, exhaust=exhaust, seed=seed)
        self._medians: dict[str, tuple[float, Candidate]] = {}
        self._hopeless: dict[str, tuple[float, Candidate]] = {}
        self._uids: dict[str, str] = {}
        self._told: set[str] = set()
        self._faults: dict[str, str] = {}
        self._measured: set[str] = set()
        self._has_settled = False
        self._known = 0
        self._artifacts: dict[str, tuple[Artifact, ...]] = {}
        self._started = time.monotonic()
        if stored is not None:
            self._searcher.reserve(stored)
            self.waiting.append(self._with_variants(stored))

    @property
    def candidates(self) -> int:
        """How many trials there will be at most, those that are known left out."""
        return min(self._most, max(self.done, self.plan.candidates - self._known))

    @property
    def over(self) -> bool:
        """Nothing in flight and nothing left to ask."""
        return not self.waiting and self.on_device == 0 and self._may_ask == 0

    @property
    def settled(self) -> bool:
        """Whether the search ends before its budget because more trials are unlikely to gain anything."""
        # once and for all: what was dropped on the strength of it is not proposed again
        self._has_settled = self._has_settled or (self._budget.trials is None and self._searcher.settled)
        return self._has_settled

    @property
    def best_us(self) -> float | None:
        """The best median so far."""
        return min((median for median, _ in self._medians.values()), default=None)

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the pace so far."""
        if self.done == 0:
            return None
        pace = (time.monotonic() - self._started) / self.done
        return max(0.0, min(pace * (self.candidates - self.done), self._budget.device_seconds - self.seconds))

    def ask(self, in_flight: int) -> list[Waiting]:
        """New candidates, so that ``in_flight`` are waiting or on the device."""
        count = min(in_flight - len(self.waiting) - self.on_device, self._may_ask)
        asked = [self._with_variants(candidate) for candidate in self._searcher.ask(max(count, 0))]
        self.waiting += asked
        return asked

    def remember_trial(
        self, candidate: Candidate, status: str, median_us: float | None, censored: bool, uid: str
    ) -> None:
        """A stored trial: it need not be repeated, and costs no budget."""
        self._known += candidate.key not in self._uids
        self._take_in(candidate, status, median_us, censored, uid)

    def wants(self, candidate: Candidate) -> bool:
        """Whether it would learn from this candidate, which another problem's artifacts can run, and never asked."""
        return self._searcher.untried(candidate)

    def serve(self, built: Waiting) -> Waiting | None:
        """The same candidate here, if the variants that another problem built run it and it would be learnt from.

        It is then taken to be tried: ``learn_shared`` must tell.
        """
        if not built.variants or not self.wants(built.candidate):
            return None
        own = self._with_variants(built.candidate)
        if [variant.key for variant in own.variants] != [variant.key for variant in built.variants]:
            return None
        self._searcher.reserve(built.candidate)
        return own

    def learn_shared(
        self, candidate: Candidate, status: str, median_us: float | None, censored: bool, uid: str
    ) -> None:
        """The outcome of a trial that was not asked for: it costs no budget."""
        self._take_in(candidate, status, median_us, censored, uid)

    def learn(self, candidate: Candidate, status: str, median_us: float | None, censored: bool, uid: str) -> None:
        """The outcome of a trial of this run."""
        self.done += 1
        self._take_in(candidate, status, median_us, censored, uid)

    def _take_in(self, candidate: Candidate, status: str, median_us: float | None, censored: bool, uid: str) -> None:
        usable = status == "ok" and median_us is not None
        self._searcher.tell(candidate, median_us if usable else None)
        self._told.add(candidate.key)
        self.waiting = [waiting for waiting in self.waiting if waiting.candidate.key != candidate.key]
        self.statuses[status] += 1
        for times in (self._medians, self._hopeless):
            times.pop(candidate.key, None)
        self._uids.pop(candidate.key, None)
        self._faults.pop(candidate.key, None)
        if not usable:
            self._faults[candidate.key] = status
        if usable and median_us is not None:
            self._measured.add(candidate.implementation.name)
            (self._hopeless if censored else self._medians)[candidate.key] = (median_us, candidate)
            self._uids[candidate.key] = uid

    def remember(self, candidate: Candidate, artifacts: tuple[Artifact, ...]) -> None:
        """The artifacts that a candidate runs from, for the finals."""
        self._artifacts[candidate.key] = artifacts

    def unbuilt(self) -> list[Waiting]:
        """Who may enter the finals and is known from an earlier run alone: nothing was compiled for it in this one."""
        first = [self.incumbent(), self.default(), *self.ranked()[: PRE_FINALISTS + 1], *self.best_of_each()]
        entering = {candidate.key: candidate for candidate in first if candidate is not None}
        return [self._with_variants(one) for key, one in entering.items() if key not in self._artifacts]

    def entrant(self, candidate: Candidate, role: str = "candidate") -> Entrant:
        """The candidate as a worker is told of it."""
        artifacts = self._artifacts.get(candidate.key, ())
        return Entrant(candidate.implementation.name, dict(candidate.config), artifacts, role)

    def median_us(self, key: str) -> float | None:
        """What the search measured for a candidate, by its key."""
        entry = self._medians.get(key) or self._hopeless.get(key)
        return entry[0] if entry else None

    def knows(self, candidate: Candidate) -> bool:
        """Whether a trial of it was told, be it this run's or another's."""
        return candidate.key in self._told

    def is_moot(self, candidate: Candidate) -> bool:
        """Whether nothing is gained by trying it still: it is known by now, or the search has settled meanwhile."""
        if self.knows(candidate):
            return True
        if self.must_try(candidate):
            return False
        # where all has been proposed, what was asked for is all that is left; and of every implementation something is
        # measured
        return self.settled and self._searcher.size > 0 and candidate.implementation.name in self._measured

    def drop_moot(self) -> None:
        """Forget what waits for a compiler and is wanted no more."""
        self.waiting = [waiting for waiting in self.waiting if not self.is_moot(waiting.candidate)]

    def is_right(self, candidate: Candidate) -> bool:
        """Whether it was verified and timed."""
        return candidate.key in self._uids

    def fault_of(self, candidate: Candidate) -> str:
        """The status of its last trial where that was not ``ok``; "" of what is right or was not tried."""
        return self._faults.get(candidate.key, "")

    def uid(self, candidate: Candidate) -> str | None:
        """The trial that it was verified in."""
        return self._uids.get(candidate.key)

    def ranked(self) -> list[Candidate]:
        """What was right, fastest first."""
        return [candidate for _, candidate in _by_time(self._medians)]

    def default(self) -> Candidate | None:
        """The default that dispatch would run untuned, or the next one that is right."""
        return next((candidate for candidate in self.plan.defaults() if self.is_right(candidate)), None)

    def must_try(self, candidate: Candidate) -> bool:
        """Whether it is measured whatever happens: what an implementation runs untuned, and what is to be beaten."""
        return candidate.key in self._defaults or (self._stored is not None and candidate.key == self._stored.key)

    @cached_property
    def _defaults(self) -> frozenset[str]:
        return frozenset(candidate.key for candidate in self.plan.defaults())

    def incumbent(self) -> Candidate | None:
        """What must be beaten: the stored winner, else the default, else the fastest."""
        if self._stored is not None and self.is_right(self._stored):
            return self._stored
        return self.default() or next(iter(self.ranked()), None)

    def best_of_each(self) -> list[Candidate]:
        """The fastest right candidate of every implementation, be it one that was soon given up."""
        best: dict[str, Candidate] = {}
        for _, candidate in [*_by_time(self._medians), *_by_time(self._hopeless)]:
            best.setdefault(candidate.implementation.name, candidate)
        return list(best.values())

    @property
    def _may_ask(self) -> int:
        if self.seconds >= self._budget.device_seconds or self._searcher.size == 0 or self.settled:
            return 0
        return max(0, self._most - self.done - len(self.waiting) - self.on_device)

    def _with_variants(self, candidate: Candidate) -> Waiting:
        try:
            plan = self.plan
            variants = variants_of(plan.op, candidate, plan.problem, plan.arguments, plan.device)
            own = {variant.key for variant in variants}
            extra = tuple(variant for variant in self._variants_of_twin(candidate) if variant.key not in own)
            return Waiting(candidate, variants, extra)
        except Exception as fault:  # a stranger's launch() or variant; its fault is the candidate's
            return Waiting(candidate, fault=f"{type(fault).__name__}: {fault}")

    def _variants_of_twin(self, candidate: Candidate) -> tuple[Variant, ...]:
        """What runs it on the smaller problem on which most of a large one is verified."""
        if self._twin is None:
            return ()
        twin, arguments = self._twin
        return variants_at(self.plan.op, candidate, twin, arguments, self.plan.device) or ()

    @cached_property
    def _twin(self) -> tuple[Problem, Arguments] | None:
        twin = twin_of(self.plan.op, self.plan.problem)
        return None if twin is None else (twin, arguments_of(self.plan.op, twin))


def _by_time(times: Mapping[str, tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    return sorted(times.values(), key=lambda entry: entry[0])


def by_distance(plan: ProblemPlan, neighbours: Sequence[tuple[Mapping[str, Any], Candidate]]) -> list[Candidate]:
    """The neighbours' candidates, nearest problem first."""
    return seeds_of(plan, neighbours)

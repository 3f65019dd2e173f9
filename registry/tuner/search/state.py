"""The state of one problem's search: which candidates wait, are on the device or done, and when the search is over."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...dispatch.plans.plan import Candidate
from ..limits import Budget
from ..planning.problems import ProblemPlan
from .findings import Finding, Findings
from .proposals import EXHAUST, Searcher
from .studies import Studies
from .waiting import Waiting, waiting_for


class SearchState:
    """One problem's search between planning and finals; ``findings`` is what it has found.

    ``waiting`` candidates are not compiled yet, ``on_device`` counts those that the worker has or will get, ``done``
    the trials of this run, ``seconds`` what they took of the worker. ``study`` is Optuna's.
    """

    def __init__(
        self,
        plan: ProblemPlan,
        budget: Budget,
        seeds: Sequence[Candidate],
        seed: int,
        stored: Candidate | None = None,
        studies: Studies | None = None,
    ) -> None:
        self.plan = plan
        self.findings = Findings(plan, seed, stored, budget.device_seconds)
        self.waiting: list[Waiting] = []
        self.on_device = 0
        self.done = 0
        self.seconds = 0.0
        self.stopped = False
        self._budget = budget
        # a stored winner is tried beside the budget and the wanted implementations: it has to be beaten
        self._most = budget.most_trials + (stored is not None)
        exhaust = EXHAUST if budget.trials is None else budget.trials
        self._searcher = Searcher(plan, seeds=seeds, exhaust=exhaust, seed=seed, studies=studies)
        self.study = self._searcher.study
        self._has_settled = False
        self._known = 0
        self._started = time.monotonic()
        if stored is not None:
            self._searcher.reserve(stored)
            self.waiting.append(waiting_for(plan, stored))

    @property
    def candidates(self) -> int:
        """The most trials that this search will make, without those of earlier runs."""
        return min(self._most, max(self.done, self.plan.candidates - self._known))

    @property
    def over(self) -> bool:
        """Whether nothing is in flight and nothing is left to ask."""
        return not self.waiting and self.on_device == 0 and self._may_ask == 0

    def stop(self) -> None:
        """End the search: trials that the worker has already are still learnt, no other is begun."""
        self.stopped = True

    @property
    def _out_of_time(self) -> bool:
        return self.stopped or self.seconds >= self._budget.device_seconds

    @property
    def settled(self) -> bool:
        """Whether the search ends before its budget because more trials are unlikely to gain anything."""
        # for good: candidates that were dropped because of it are not proposed again
        self._has_settled = self._has_settled or (self._budget.trials is None and self._searcher.settled)
        return self._has_settled

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the seconds until the search is over, from its pace so far; None before the first trial."""
        if self.done == 0:
            return None
        pace = (time.monotonic() - self._started) / self.done
        return max(0.0, min(pace * (self.candidates - self.done), self._budget.device_seconds - self.seconds))

    def close(self) -> None:
        self._searcher.close()

    # asking

    def ask(self, in_flight: int) -> list[Waiting]:
        """New candidates, so that ``in_flight`` are waiting or on the device."""
        count = min(in_flight - len(self.waiting) - self.on_device, self._may_ask)
        asked = [waiting_for(self.plan, candidate) for candidate in self._searcher.ask(max(count, 0))]
        self.waiting += asked
        return asked

    def wants(self, candidate: Candidate) -> bool:
        """Whether the search would learn from a candidate that it never asked for."""
        return self._searcher.untried(candidate)

    def serve(self, built: Waiting) -> Waiting | None:
        """A candidate compiled for another problem, for this one; None if it needs other variants or is not wanted.

        The candidate then counts as being tried: ``learn`` must tell its outcome.
        """
        if not built.variants or not self.wants(built.candidate):
            return None
        own = waiting_for(self.plan, built.candidate)
        if [variant.key for variant in own.variants] != [variant.key for variant in built.variants]:
            return None
        self._searcher.reserve(built.candidate)
        return own

    def unbuilt(self) -> list[Waiting]:
        """Candidates that may enter the finals, and for which this run has compiled nothing."""
        return [waiting_for(self.plan, candidate) for candidate in self.findings.unbuilt()]

    def is_moot(self, candidate: Candidate) -> bool:
        """True if trying the candidate gains nothing any more: it is known, or the search has settled meanwhile."""
        if self.findings.knows(candidate):
            return True
        if self.findings.must_try(candidate):
            return self.stopped
        if self._out_of_time:
            return True
        # if all was proposed, only waiting candidates are left; and each implementation gets a measurement
        known = self.settled and self._searcher.size > 0
        return known and self.findings.has_measured(candidate.implementation.name)

    def drop_moot(self) -> None:
        """Forget the candidates that wait for a compiler and are not wanted any more."""
        self.waiting = [waiting for waiting in self.waiting if not self.is_moot(waiting.candidate)]

    @property
    def _may_ask(self) -> int:
        if self._out_of_time or self._searcher.size == 0 or self.settled:
            return 0
        return max(0, self._most - self.done - len(self.waiting) - self.on_device)

    # learning

    def learn(self, told: Finding, *, asked: bool = True) -> None:
        """Take in the outcome of a trial; one that this search has not ``asked`` for costs no budget."""
        self.done += asked
        notes = {"status": told.status, "uid": told.uid, **({"message": told.message} if told.message else {})}
        self._searcher.tell(told.candidate, told.median_us, status=told.status, censored=told.censored, notes=notes)
        self.findings.learn(told)
        self.waiting = [waiting for waiting in self.waiting if waiting.candidate.key != told.candidate.key]

    def learn_stored(self, told: Finding) -> None:
        """Take in the outcome of another run's trial: it need not be repeated, and costs no budget."""
        self._known += not self.findings.is_right(told.candidate)
        self.learn(told, asked=False)

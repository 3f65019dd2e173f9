"""The searches of several problems at once: ask, compile, feed the device, learn. One thread, one event loop."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..artifact import Artifact
from ..device import Device
from ..dispatch.plan import Candidate
from .crew import Crew
from .events import Observer, ProblemStarted, TrialDone
from .jobs import Entrant, Failed, Outcome, TrialJob
from .planning import ProblemPlan
from .problem_search import ProblemSearch, Waiting
from .protocol import Protocol
from .recording import Recorder

_ACTIVE_PROBLEMS = 6
_IN_FLIGHT = 8

Begin = Callable[[ProblemPlan, Sequence[ProblemSearch]], ProblemSearch]
"""Makes a problem's search, given those that are over: its neighbours' winners are where it starts."""


class SearchLoop:
    """Searches problems, several at a time, so that the device has work while variants compile."""

    def __init__(self, crew: Crew, device: Device, protocol: Protocol, recorder: Recorder, observe: Observer) -> None:
        self._crew = crew
        self._device = device
        self._protocol = protocol
        self._recorder = recorder
        self._observe = observe
        self._active: list[ProblemSearch] = []
        self._ready: collections.deque[tuple[ProblemSearch, Waiting | None, TrialJob]] = collections.deque()
        self._sent: dict[int, tuple[ProblemSearch, Candidate | None]] = {}
        self.trials = 0
        crew.answered = self._answered

    def run(self, plans: Sequence[ProblemPlan], begin: Begin) -> list[ProblemSearch]:
        """Search all of them; returns the searches in the order in which they ended."""
        queue = collections.deque(plans)
        over: list[ProblemSearch] = []
        while queue or self._active:
            while queue and len(self._active) < _ACTIVE_PROBLEMS:
                self._begin(begin(queue.popleft(), over))
            self._advance()
            for search in [search for search in self._active if search.over]:
                self._active.remove(search)
                over.append(search)
        return over

    def _begin(self, search: ProblemSearch) -> None:
        self._active.append(search)
        search.on_device += 1
        self._ready.append((search, None, self._job(search, Entrant("", {}, (), "floor"))))
        self._observe(ProblemStarted(search.plan.problem, search.candidates, None))

    def _advance(self) -> None:
        """One turn: ask, compile, feed the device, wait for whoever answers first."""
        self._hear()
        for search in self._active:
            search.ask(_IN_FLIGHT)
            for waiting in list(search.waiting):
                self._push(search, waiting)
        self._feed()
        if self._sent or not self._crew.compiler.idle:
            self._crew.wait()

    def _hear(self) -> None:
        """What other runs on this database have tried meanwhile need not be tried here."""
        if self._recorder.has_news():
            for search in self._active:
                for candidate, trial in self._recorder.news(search.plan):
                    search.remember_trial(candidate, trial.status, trial.median_us, trial.censored, trial.uid)

    def _push(self, search: ProblemSearch, waiting: Waiting) -> None:
        """Towards the device if all its variants are built, out if one failed."""
        if waiting.fault:
            self._give_up(search, waiting, Failed("error", waiting.fault))
            return
        op, name = search.plan.op.name, waiting.candidate.implementation.name
        compiler, target = self._crew.compiler, self._device.target
        results = [compiler.want(op, name, variant, target) for variant in waiting.variants]
        failure = next((result for result in results if isinstance(result, Failed)), None)
        if failure is not None:
            self._give_up(search, waiting, failure)
        elif all(results):
            artifacts: tuple[Artifact, ...] = tuple(result.artifact for result in results if result)  # type: ignore[union-attr]
            search.remember(waiting.candidate, artifacts)
            search.waiting.remove(waiting)
            search.on_device += 1
            self._ready.append((search, waiting, self._job(search, search.entrant(waiting.candidate))))

    def _give_up(self, search: ProblemSearch, waiting: Waiting, failure: Failed) -> None:
        search.waiting.remove(waiting)
        self._learn(search, waiting.candidate, Outcome(failure.status, failure.message))

    def _feed(self) -> None:
        """Keep the device busy; on a CPU measure only while nothing compiles, since both want the same cores."""
        worker, compiler = self._crew.worker, self._crew.compiler
        assert worker is not None
        if self._device.type == "cpu" and not compiler.idle:
            return
        while self._ready and worker.wants_more:
            search, waiting, job = self._ready.popleft()
            if waiting is not None and search.knows(waiting.candidate):
                search.on_device -= 1  # another run was faster
                continue
            self._sent[job.id] = (search, waiting.candidate if waiting else None)
            self._crew.submit(replace(job, best_us=search.best_us))

    def _answered(self, job: TrialJob, outcome: Outcome) -> None:
        search, candidate = self._sent.pop(job.id)
        search.on_device -= 1
        search.seconds += outcome.seconds
        if candidate is None:
            search.floor_us = outcome.median_us
        else:
            self._learn(search, candidate, outcome)

    def _learn(self, search: ProblemSearch, candidate: Candidate, outcome: Outcome) -> None:
        plan = search.plan
        uid = self._recorder.trial(plan.op, plan.problem, candidate, outcome)
        search.learn(candidate, outcome.status, outcome.median_us, outcome.censored, uid)
        self.trials += 1
        self._observe(
            TrialDone(
                plan.problem,
                candidate.implementation.name,
                candidate.config,
                outcome.status,
                outcome.message,
                outcome.median_us,
                search.done,
                search.candidates,
                search.best_us,
                search.floor_us,
                search.seconds_left,
            )
        )

    def _job(self, search: ProblemSearch, entrant: Entrant) -> TrialJob:
        plan = search.plan
        return TrialJob(
            self._crew.next_job(), plan.op.name, dict(plan.problem.dims), entrant, dict(self._protocol.details),
            search.seed,
        )  # fmt: skip

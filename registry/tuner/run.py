"""A tuning run: one thread and one event loop over pipes, the owner of all state and the only writer of the store."""

from __future__ import annotations

import collections
import itertools
import os
import selectors
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tuning_db import Store, TuningDBError

from ..artifact import Artifact
from ..device import Device
from ..discovery import Catalog
from ..dispatch.plan import Candidate
from ..errors import StoreError
from ..problem import Problem
from .children import Answer, Compiler, DeviceWorker
from .deciding import Deciding, result_of
from .events import (
    Event,
    Note,
    Observer,
    ProblemDecided,
    ProblemSkipped,
    ProblemStarted,
    Result,
    RunEnded,
    RunStarted,
    TrialDone,
)
from .jobs import BlockJob, Entrant, Failed, Outcome, TrialJob
from .planning import ProblemPlan
from .planning import plan as plan_problems
from .problem_search import Budget, ProblemSearch, Waiting, by_distance
from .protocol import Protocol
from .recording import Recorder

_ACTIVE_PROBLEMS = 6
_IN_FLIGHT = 8
_BATCH = 16
_LONGEST_BATCH = 24
_TICK_S = 0.5
_MOST_COMPILERS = 16

__all__ = ["Budget", "tune"]


def _ignore(event: Event) -> None:
    """The observer of a run that nobody watches."""


def tune(
    problems: Sequence[Problem],
    *,
    catalog: Catalog,
    device: Device,
    database: str | None = None,
    budget: Budget | None = None,
    implementations: Sequence[str] = (),
    retune: bool = False,
    observer: Observer = _ignore,
) -> tuple[Result, ...]:
    """Search, verify, measure and decide each problem on ``device``; store every trial and the winners.

    Problems that have a valid winner for this hardware, software and source are reported and left alone, unless
    ``retune``. Ctrl-C ends the run in order: what was measured is stored. Raises StoreError when the database cannot
    be used, UnknownNameError for an implementation that nobody has.
    """
    plans = plan_problems(tuple(dict.fromkeys(problems)), catalog, device, implementations)
    try:
        with Store.open(database) as store:
            run = TuningRun(plans, catalog, device, store, budget or Budget(), retune, observer)
            return run.run()
    except TuningDBError as fault:
        raise StoreError(fault.message, hint=fault.hint) from fault


class TuningRun:
    """One call of ``tune``."""

    def __init__(
        self,
        plans: Sequence[ProblemPlan],
        catalog: Catalog,
        device: Device,
        store: Store,
        budget: Budget,
        retune: bool,
        observer: Observer,
    ) -> None:
        self._plans = plans
        self._device = device
        self._database = store.url
        self._budget = budget
        self._retune = retune
        self._observe = observer
        self._files = catalog.files
        self._protocol = Protocol.of(device)
        self._recorder = Recorder(store, device, self._protocol, {"problems": len(plans)})
        self._selector = selectors.DefaultSelector()
        self._compiler = Compiler(self._selector, _compilers(device), self._files)
        self._worker: DeviceWorker | None = None
        self._spare: DeviceWorker | None = None
        self._active: list[ProblemSearch] = []
        self._ready: collections.deque[tuple[ProblemSearch, Waiting | None, TrialJob]] = collections.deque()
        self._sent: dict[int, tuple[ProblemSearch, Candidate | None]] = {}
        self._jobs = 0
        self._begun = 0
        self._blocks: dict[int, Answer] = {}
        self._trials = 0
        self._device_seconds = 0.0
        self._results: list[Result] = []

    def run(self) -> tuple[Result, ...]:
        """Everything, in order; returns the results that were reached."""
        began = time.monotonic()
        known = self._known()
        self._observe(
            RunStarted(
                str(self._device),
                tuple(p.problem for p in self._plans),
                tuple(p.problem for p in known),
                self._database,
            )
        )
        left = {plan.problem for plan in self._plans} - {plan.problem for plan in known}
        todo = [plan for plan in self._plans if plan.problem in left and not self._skip(plan)]
        interrupted = False
        try:
            for batch in _batches(todo):
                self._tune(batch)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._close()
            seconds = time.monotonic() - began
            self._recorder.end({"seconds": seconds, "device_seconds": self._device_seconds, "interrupted": interrupted})
        undecided = len(todo) + len(known) - len(self._results)
        self._observe(RunEnded(seconds, self._device_seconds, self._trials, interrupted, undecided))
        return tuple(self._results)

    def _known(self) -> list[ProblemPlan]:
        if self._retune:
            return []
        known = []
        for plan in self._plans:
            decision = self._recorder.winner(plan.op, plan.problem)
            if decision is not None and self._recorder.valid(plan, decision) is not None:
                known.append(plan)
                self._results.append(result_of(plan, decision, "kept"))
        return known

    def _skip(self, plan: ProblemPlan) -> bool:
        if plan.skipped:
            self._observe(ProblemSkipped(plan.problem, plan.skipped))
        return bool(plan.skipped)

    def _tune(self, plans: Sequence[ProblemPlan]) -> None:
        """Search a batch of problems, then hold their finals together."""
        self._worker = self._new_worker()
        queue = collections.deque(plans)
        finished: list[ProblemSearch] = []
        while queue or self._active:
            while queue and len(self._active) < _ACTIVE_PROBLEMS:
                self._begin(queue.popleft(), finished)
            self._advance()
            for search in [search for search in self._active if search.over]:
                self._active.remove(search)
                finished.append(search)
        deciding = Deciding(self._recorder, self._device, self._protocol, self._observe)
        deciding.prepare(finished, self._run_blocks)
        for block in range(deciding.blocks if deciding.finals else 0):
            self._replace_worker(last=block == deciding.blocks - 1)
            deciding.block(block, self._run_blocks)
        self._close_workers()
        for result in deciding.decide():
            self._results.append(result)
            self._observe(ProblemDecided(result))

    def _begin(self, plan: ProblemPlan, finished: Iterable[ProblemSearch]) -> None:
        seeds = by_distance(plan, [*self._tuned_in_this_run(plan, finished), *self._recorder.neighbours(plan)])
        stored = self._recorder.valid(plan, self._recorder.winner(plan.op, plan.problem))
        search = ProblemSearch(plan, self._budget, seeds, self._begun, stored)
        self._begun += 1
        if not self._retune:
            for candidate, trial in self._recorder.known_trials(plan):
                search.remember_trial(candidate, trial.status, trial.median_us, trial.censored, trial.uid)
        self._active.append(search)
        floor = TrialJob(
            self._next_job(), plan.op.name, dict(plan.problem.dims), Entrant("", {}, (), "floor"),
            dict(self._protocol.details), search.seed,
        )  # fmt: skip
        search.on_device += 1
        self._ready.append((search, None, floor))
        self._observe(ProblemStarted(plan.problem, search.candidates, None))

    def _tuned_in_this_run(self, plan: ProblemPlan, finished: Iterable[ProblemSearch]) -> list[tuple[Any, Candidate]]:
        static = {name: plan.problem.dims[name] for name in plan.op.static}
        near = [
            search
            for search in finished
            if search.plan.op is plan.op and {name: search.plan.problem.dims[name] for name in plan.op.static} == static
        ]
        return [(search.plan.problem.dims, search.ranked()[0]) for search in near if search.ranked()]

    def _advance(self) -> None:
        """One turn of the loop: ask, compile, feed the device, wait for whoever answers first."""
        for search in self._active:
            search.ask(_IN_FLIGHT)
            for waiting in list(search.waiting):
                self._push(search, waiting)
        self._feed()
        if self._sent or not self._compiler.idle:
            self._wait()

    def _push(self, search: ProblemSearch, waiting: Waiting) -> None:
        """Towards the device if all its variants are built, out if one failed."""
        if waiting.fault:
            self._give_up(search, waiting, Failed("error", waiting.fault))
            return
        target, candidate = self._device.target, waiting.candidate
        op, name = search.plan.op.name, candidate.implementation.name
        results = [self._compiler.want(op, name, variant, target) for variant in waiting.variants]
        failure = next((result for result in results if isinstance(result, Failed)), None)
        if failure is not None:
            self._give_up(search, waiting, failure)
        elif all(results):
            artifacts: tuple[Artifact, ...] = tuple(result.artifact for result in results if result)  # type: ignore[union-attr]
            search.remember(candidate, artifacts)
            search.waiting.remove(waiting)
            search.on_device += 1
            job = TrialJob(
                self._next_job(), op, dict(search.plan.problem.dims), search.entrant(candidate),
                dict(self._protocol.details), search.seed,
            )  # fmt: skip
            self._ready.append((search, waiting, job))

    def _give_up(self, search: ProblemSearch, waiting: Waiting, failure: Failed) -> None:
        search.waiting.remove(waiting)
        self._learn(search, waiting.candidate, Outcome(failure.status, failure.message))

    def _feed(self) -> None:
        """Keep the device busy; on a CPU measure only while nothing compiles, since both want the same cores."""
        assert self._worker is not None
        if self._device.type == "cpu" and not self._compiler.idle:
            return
        while self._ready and self._worker.wants_more:
            search, waiting, job = self._ready.popleft()
            best = search.best_us
            job = replace(job, best_us=best)
            self._sent[job.id] = (search, waiting.candidate if waiting else None)
            self._worker.submit(job)

    def _wait(self) -> None:
        for key, _ in self._selector.select(_TICK_S):
            key.data()
        self._compiler.check_deadlines()
        if self._worker is not None:
            self._worker.check_deadlines()

    def _answered(self, job: TrialJob | BlockJob, answer: Answer) -> None:
        self._device_seconds += getattr(answer, "seconds", 0.0)
        if isinstance(job, BlockJob):
            self._blocks[job.id] = answer
            return
        assert isinstance(answer, Outcome)
        search, candidate = self._sent.pop(job.id)
        search.on_device -= 1
        search.seconds += answer.seconds
        if candidate is None:
            search.floor_us = answer.median_us
        else:
            self._learn(search, candidate, answer)

    def _learn(self, search: ProblemSearch, candidate: Candidate, outcome: Outcome) -> None:
        plan = search.plan
        uid = self._recorder.trial(plan.op, plan.problem, candidate, outcome)
        search.learn(candidate, outcome.status, outcome.median_us, outcome.censored, uid)
        self._trials += 1
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

    def _run_blocks(self, jobs: Sequence[BlockJob]) -> list[Answer]:
        """Run finals blocks on the current worker, in order; a crash costs that block."""
        assert self._worker is not None
        answers = []
        for job in jobs:
            # one at a time: a block's message is long, and a full pipe to a child that hangs would block this loop
            numbered = replace(job, id=self._next_job())
            self._worker.submit(numbered)
            while numbered.id not in self._blocks:
                self._wait()
            answers.append(self._blocks.pop(numbered.id))
        return answers

    def _replace_worker(self, *, last: bool) -> None:
        """A fresh process. On a GPU the one after it starts meanwhile: it touches the device at its first job only."""
        fresh, self._spare = self._spare or self._new_worker(), None
        if self._worker is not None:
            self._worker.close()
        self._worker = fresh
        if self._device.type == "cuda" and not last:
            self._spare = self._new_worker()

    def _new_worker(self) -> DeviceWorker:
        return DeviceWorker(
            self._selector, self._device, self._files, self._answered, lambda text: self._observe(Note(text))
        )

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    def _close_workers(self) -> None:
        for worker in (self._worker, self._spare):
            if worker is not None:
                worker.close()
        self._worker = self._spare = None

    def _close(self) -> None:
        self._compiler.close()
        self._close_workers()
        self._selector.close()


def _batches(plans: Sequence[ProblemPlan]) -> list[list[ProblemPlan]]:
    """Consecutive problems that share finals, small ops' together: winners are stored at the end of each batch."""
    batches: list[list[ProblemPlan]] = []
    for _, group in itertools.groupby(plans, key=lambda plan: plan.op.name):
        for plan in group:
            started = bool(batches) and plan.op is batches[-1][-1].op
            if not batches or len(batches[-1]) >= (_LONGEST_BATCH if started else _BATCH):
                batches.append([])
            batches[-1].append(plan)
    return batches


def _compilers(device: Device) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # on a GPU one core is left to the worker, which must never be late with a launch
    return max(1, min(_MOST_COMPILERS, cores - 1 if device.type == "cuda" else cores))

"""A tuning run, from planned problems to stored winners: it owns all state, and alone writes its results."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tuning_db import Store
from tuning_db.snapshot import LEARNT

from ..device import named
from ..discovery.catalog import Catalog
from ..dispatch.plans.plan import Candidate
from ..problem import Problem
from .decide.finals import Finals
from .decide.learning import learnt_by
from .decide.machine_noise import aa_job, aa_of, default_job, earlier_noise
from .decide.noise import Noise
from .decide.results import result_of
from .events import (
    BlockStarted,
    Event,
    Note,
    Observer,
    ProblemDecided,
    ProblemSkipped,
    Result,
    RunEnded,
    RunStarted,
    SecondsLeft,
)
from .jobs import BlockJob
from .measure.protocol import REGIME, TimingProtocol
from .options import TuneOptions
from .planning.distance import seeds_of
from .planning.problems import ProblemPlan
from .planning.weights import default_us, weigh
from .search.findings import Finding, Findings
from .search.loop import SearchLoop
from .search.state import SearchState
from .search.studies import Studies
from .stored_winners import StandingWinner, raced_again
from .storing import RunStore
from .time_left import TimeLeft
from .work import run_details
from .workers.crew import Crew

_WARMING_UP_S = 10.0
"""Seconds until a run's processes have started; the shares of worker and device count from then on."""


class TuningRun:
    """A run on a crew's devices, which are of one hardware identity."""

    def __init__(
        self,
        plans: Sequence[ProblemPlan],
        catalog: Catalog,
        crew: Crew,
        store: Store,
        options: TuneOptions,
        studies: Studies,
        observer: Observer,
        counts: Mapping[Problem, int],
    ) -> None:
        self._plans = plans
        self._catalog = catalog
        self._crew = crew
        self._devices = [one.device for one in crew.devices]
        self._device = device = self._devices[0]
        self._database = store.url
        self._options = options
        self._observe = observer
        self._protocol = options.protocol or TimingProtocol.of(device, options.regime)
        note = lambda text: observer(Note(text))  # noqa: E731
        details = {**run_details(plans, device), **options.details}
        self._store = RunStore(store, device, self._protocol, details, note, options.patience_s, plans)
        self._loop = SearchLoop(crew, device, self._protocol, self._store, observer)
        self._studies = replace(studies, run=self._store.run[:8])
        # runs side by side on one database must not try everything in the same order
        self._seeds = itertools.count(int(self._store.run[:7], 16))
        self._results: list[Result] = []
        self._phases: dict[str, float] = {}
        self._left = TimeLeft(0, None)
        self._noise = Noise()
        self._noise_blocks: list[int] = []
        self._earlier_noise = earlier_noise(store, self._store.environment) + Noise(devices=options.device_variance)
        self._weights = weigh(plans, counts, lambda plan: default_us(self._store.winner(plan.op, plan.problem)))

    def run(self) -> tuple[Result, ...]:
        """Tune all problems in order; returns the results that were reached."""
        standing = self._standing()
        kept = [one for one in standing if not one.unmet]
        self._results += [result_of(one.plan, one.decision, "kept") for one in kept]
        known = tuple(one.plan.problem for one in kept)
        problems = tuple(plan.problem for plan in self._plans)
        self._observe(RunStarted(named(self._devices), problems, known, self._database))
        if told := raced_again(standing):
            self._observe(Note(told))
        left = set(problems) - set(known)
        todo = [plan for plan in self._plans if plan.problem in left and not self._skip(plan)]
        interrupted = False
        budget = self._options.budget
        self._left = TimeLeft(len(todo), budget.run_seconds, len(self._devices), budget.device_seconds)
        try:
            self._begin_noise(aa_job(todo, self._protocol))
            batches = self._weights.batches(todo, len(self._devices))
            for number, batch in enumerate(batches, 1):
                if self._left.out_of_time((), ()):
                    break
                self._tune(batch, first=number == 1, last=number == len(batches))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            try:
                ended = self._ended(interrupted, undecided=len(todo) + len(known) - len(self._results))
            finally:
                self._crew.close()
        self._observe(ended)
        return tuple(self._results)

    def _ended(self, interrupted: bool, undecided: int) -> RunEnded:
        crew = self._crew
        devices = crew.use(_WARMING_UP_S)
        ended = RunEnded(
            crew.seconds, sum(one.worker_seconds for one in devices), self._loop.trials, interrupted, undecided,
            _mean(one.worker_share for one in devices), _mean(one.kernel_share for one in devices),
            dict(crew.compiler.seconds), self._weights.saving(self._results), _WARMING_UP_S,
            self._left.timed_out and undecided > 0, devices,
        )  # fmt: skip
        self._store.end(
            {
                "seconds": ended.seconds, "worker_seconds": ended.worker_seconds, "interrupted": interrupted,
                "worker_share": ended.worker_share, "kernel_share": ended.kernel_share,
                "compile_seconds": ended.compile_seconds, "noise": self._noise.details,
                "blocks_seconds": crew.blocks, "devices": [vars(one) for one in devices],
                **self._phases,
                **self._learnt(),
            }
        )  # fmt: skip
        return ended

    def _learnt(self) -> dict[str, Any]:
        """The rules for defaults that this run has learnt; none unless the regime is ``cold``, which dispatch uses."""
        if self._options.regime != REGIME:
            return {}
        ops = dict.fromkeys(plan.op for plan in self._plans)
        return {LEARNT: learnt_by(self._store, ops, self._catalog, self._device)}

    def _standing(self) -> list[StandingWinner]:
        """The stored winners that are valid here; none where all problems are tuned anew."""
        if self._options.retune:
            return []
        return [found for plan in self._plans if (found := self._store.standing(plan)) is not None]

    def _skip(self, plan: ProblemPlan) -> bool:
        if plan.skipped:
            self._observe(ProblemSkipped(plan.problem, plan.skipped, plan.faulty))
        return bool(plan.skipped)

    def _tune(self, plans: Sequence[ProblemPlan], *, first: bool, last: bool) -> None:
        """Search a batch of problems, then hold their finals together.

        After the search of the ``first`` batch a verified default is timed to learn the machine's noise; after the
        ``last`` batch no worker is needed.
        """
        self._crew.start_workers()
        self._left.batch_begins()
        with self._timed("search_seconds"):
            if self._device.type == "cpu":
                self._end_noise()  # before anything compiles: both want the same cores
            searched = self._loop.run(plans, self._begin, self._out_of_time)
            self._end_noise()
            # a search that was stopped before anything was compared is left out: it has decided nothing
            searched = [search for search in searched if not search.stopped or search.findings.decides]
            self._loop.build(searched)
            finished = [search.findings for search in searched]
            if first and not self._left.timed_out:
                self._begin_noise(default_job(finished, self._protocol))
                self._end_noise()
        self._left.finals_begin(len(finished))
        finals = Finals(self._store, self._protocol, self._in_finals(finished), self._noise, self._earlier_noise)
        with self._timed("finals_seconds"):
            for result in finals.run(finished, self._crew, dismiss=last, room_for_two=self._left.has_room_for_two):
                self._results.append(result)
                self._observe(ProblemDecided(result))
        self._noise = finals.noise
        self._left.finals_end(len(finished))

    def _out_of_time(self, over: Sequence[SearchState], active: Sequence[SearchState]) -> bool:
        seconds = self._left.in_search(over, active)
        if seconds is not None:
            self._observe(SecondsLeft(seconds))
        return self._left.out_of_time(over, active)

    def _in_finals(self, searched: Sequence[Findings]) -> Observer:
        """The observer of a batch's finals: with each block it is told the time left, too."""

        def observe(event: Event) -> None:
            self._observe(event)
            if isinstance(event, BlockStarted):
                self._observe(SecondsLeft(self._left.in_finals(event.number, event.blocks, searched)))

        return observe

    def _begin_noise(self, job: BlockJob | None) -> None:
        """Have each worker time twin entrants, whose ratios show the machine's noise."""
        if job is not None:
            self._crew.start_workers()
            self._noise_blocks = self._crew.begin_block(job)

    def _end_noise(self) -> None:
        for number in self._noise_blocks:
            self._noise += aa_of(self._crew.end_block(number))
        self._noise_blocks = []

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Add the seconds that the block takes to a phase; the run's record keeps them."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - began

    def _begin(self, plan: ProblemPlan, over: Sequence[SearchState]) -> SearchState:
        """A problem's search, with its neighbours' winners as seeds and its stored trials already learnt."""
        seeds = seeds_of(plan, [*_tuned_in_this_run(plan, over), *self._store.neighbours(plan)])
        stored = self._store.valid(plan, self._store.winner(plan.op, plan.problem))
        budget = self._weights.budget(plan.problem, self._options.budget)
        search = SearchState(plan, budget, seeds, next(self._seeds), stored, self._studies)
        if not self._options.retune:
            for candidate, trial in self._store.known_trials(plan):
                search.learn_stored(Finding(candidate, trial.status, trial.median_us, trial.censored, trial.uid))
        return search


def _mean(shares: Iterable[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if known else None


def _tuned_in_this_run(plan: ProblemPlan, over: Iterable[SearchState]) -> list[tuple[Any, Candidate]]:
    return [
        (search.plan.problem.dims, search.findings.ranked()[0])
        for search in over
        if search.plan.op is plan.op and search.findings.ranked()
    ]

"""A tuning run: the owner of all state and the only writer of the store, from problems to stored winners."""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from optuna.exceptions import StorageInternalError

from tuning_db import Store, TuningDBError
from tuning_db.snapshot import LEARNT

from ..correctness.tolerance_check import refuse_blind
from ..device import Device
from ..discovery.catalog import Catalog
from ..dispatch.plans.plan import Candidate
from ..errors import RegistryError, StoreError
from ..paths import check_room
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
from .planning.problems import ProblemPlan, check_shared
from .planning.problems import plan as plan_problems
from .planning.weights import default_us, weigh
from .processes import spawning
from .search.findings import Finding, Findings
from .search.loop import SearchLoop
from .search.samplers.names import sampler_named
from .search.state import SearchState
from .search.studies import Studies, open_storage
from .storing import RunStore
from .time_left import TimeLeft
from .workers import preloading
from .workers.crew import Crew

_WARMING_UP_S = 10.0
"""Seconds until a run's processes have started; the shares of worker and device count from then on."""


def tune(
    problems: Sequence[Problem],
    *,
    catalog: Catalog,
    device: Device,
    database: str | None = None,
    options: TuneOptions | None = None,
    observer: Observer = lambda _: None,
    counts: Mapping[Problem, int] | None = None,
) -> tuple[Result, ...]:
    """Search, verify, measure and decide each problem on ``device``; store every trial and the winners.

    Problems that have a valid winner for this hardware, software, regime and source are reported and left alone, unless
    ``retune`` is among the options. Ctrl-C ends the run in order: what was measured is stored. ``counts``: how often a
    program calls each problem; what takes most of its time is then tuned first, and longest.
    Raises StoreError when the database cannot be used, UnknownNameError for an implementation that nobody has,
    InvalidArgumentError for a sampler or a storage that cannot be used, InvalidDefinitionError for an op whose
    tolerance accepts a result that nobody computed, and PluginError for an op or an implementation that was added by a
    call in this process alone. Raises CacheError, before anything is measured or
    when it comes to that, where compilers cannot write; what was measured is stored.
    """
    options = options or TuneOptions()
    _check_system()
    check_room()
    try:
        with spawning.kept(preloading.ENTRY):
            studies = Studies(sampler_named(options.sampler), open_storage(options.storage))
            plans = plan_problems(tuple(dict.fromkeys(problems)), catalog, device, options.implementations)
            for op in dict.fromkeys(plan.op for plan in plans):
                refuse_blind(op)
            check_shared(plans, catalog)
            spawning.warm(*preloading.preloads_of(plans))
            with Store.open(database) as store:
                return TuningRun(plans, catalog, device, store, options, studies, observer, counts or {}).run()
    except TuningDBError as fault:
        raise StoreError(fault.message, hint=fault.hint) from fault
    except StorageInternalError as fault:
        raise StoreError(
            f"storage {options.storage!r}: {fault}", hint="what was measured is in the tuning database"
        ) from fault


def _check_system() -> None:
    """Raise RegistryError where the processes of a run cannot be started and ended as they must be."""
    if not hasattr(os, "killpg"):
        raise RegistryError(
            f"tune needs a POSIX system, whose processes it can group and end; {platform.system()} has no os.killpg",
            hint="tune on Linux or in WSL",
        )


class TuningRun:
    """One call of ``tune``."""

    def __init__(
        self,
        plans: Sequence[ProblemPlan],
        catalog: Catalog,
        device: Device,
        store: Store,
        options: TuneOptions,
        studies: Studies,
        observer: Observer,
        counts: Mapping[Problem, int],
    ) -> None:
        self._plans = plans
        self._catalog = catalog
        self._device = device
        self._database = store.url
        self._options = options
        self._observe = observer
        self._protocol = TimingProtocol.of(device, options.regime)
        note = lambda text: observer(Note(text))  # noqa: E731
        self._store = RunStore(store, device, self._protocol, {"problems": len(plans)}, note)
        self._crew = Crew(device, catalog.files, options.limits, note)
        self._loop = SearchLoop(self._crew, device, self._protocol, self._store, observer)
        self._studies = replace(studies, run=self._store.run[:8])
        # runs side by side on one database must not try everything in the same order
        self._seeds = itertools.count(int(self._store.run[:7], 16))
        self._results: list[Result] = []
        self._phases: dict[str, float] = {}
        self._left = TimeLeft(0, None)
        self._noise = Noise()
        self._noise_block = 0
        self._earlier_noise = earlier_noise(store, self._store.environment)
        self._weights = weigh(plans, counts, lambda plan: default_us(self._store.winner(plan.op, plan.problem)))

    def run(self) -> tuple[Result, ...]:
        """Tune all problems in order; returns the results that were reached."""
        known = self._known()
        problems = tuple(plan.problem for plan in self._plans)
        self._observe(RunStarted(str(self._device), problems, tuple(plan.problem for plan in known), self._database))
        left = set(problems) - {plan.problem for plan in known}
        todo = [plan for plan in self._plans if plan.problem in left and not self._skip(plan)]
        interrupted = False
        self._left = TimeLeft(len(todo), self._options.budget.run_seconds)
        try:
            self._begin_noise(aa_job(todo, self._protocol))
            batches = self._weights.batches(todo)
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
        ended = RunEnded(
            crew.seconds, crew.worker_seconds, self._loop.trials, interrupted, undecided,
            crew.worker_share(_WARMING_UP_S), crew.kernel_share(_WARMING_UP_S),
            dict(crew.compiler.seconds), self._weights.saving(self._results), _WARMING_UP_S,
            self._left.timed_out and undecided > 0,
        )  # fmt: skip
        self._store.end(
            {
                "seconds": ended.seconds, "worker_seconds": ended.worker_seconds, "interrupted": interrupted,
                "worker_share": ended.worker_share, "kernel_share": ended.kernel_share,
                "compile_seconds": ended.compile_seconds, "noise": self._noise.details,
                "blocks_seconds": crew.blocks,
                **self._phases,
                **self._learnt(),
            }
        )  # fmt: skip
        return ended

    def _learnt(self) -> dict[str, Any]:
        """What dispatch takes for a default where nothing tuned is near; it runs winners of the regime ``cold``."""
        if self._options.regime != REGIME:
            return {}
        ops = dict.fromkeys(plan.op for plan in self._plans)
        return {LEARNT: learnt_by(self._store, ops, self._catalog, self._device)}

    def _known(self) -> list[ProblemPlan]:
        if self._options.retune:
            return []
        known = []
        for plan in self._plans:
            decision = self._store.winner(plan.op, plan.problem)
            if decision is not None and self._store.valid(plan, decision) is not None:
                known.append(plan)
                self._results.append(result_of(plan, decision, "kept"))
        return known

    def _skip(self, plan: ProblemPlan) -> bool:
        if plan.skipped:
            self._observe(ProblemSkipped(plan.problem, plan.skipped))
        return bool(plan.skipped)

    def _tune(self, plans: Sequence[ProblemPlan], *, first: bool, last: bool) -> None:
        """Search a batch of problems, then hold their finals together.

        After the search of the ``first`` batch a verified default is timed to learn the machine's noise; after the
        ``last`` batch no worker is needed.
        """
        self._crew.start_worker()
        self._left.batch_begins()
        with self._timed("search_seconds"):
            if self._device.type == "cpu":
                self._end_noise()  # before anything compiles: both want the same cores
            searched = self._loop.run(plans, self._begin, self._out_of_time)
            self._end_noise()
            # a search that was stopped before anything was right is left out: it has decided nothing
            searched = [search for search in searched if not search.stopped or search.findings.incumbent()]
            self._loop.build(searched)
            finished = [search.findings for search in searched]
            if first and not self._left.timed_out:
                self._begin_noise(default_job(finished, self._protocol))
                self._end_noise()
        self._left.finals_begin(len(finished))
        finals = Finals(self._store, self._protocol, self._in_finals(finished), self._noise, self._earlier_noise)
        with self._timed("finals_seconds"):
            for result in finals.run(finished, self._crew, dismiss=last):
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
        """Have the worker time twin entrants, whose ratios show the machine's noise."""
        if job is not None:
            self._crew.start_worker()
            self._noise_block = self._crew.begin_block(job)

    def _end_noise(self) -> None:
        if self._noise_block:
            self._noise += aa_of(self._crew.end_block(self._noise_block))
            self._noise_block = 0

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


def _tuned_in_this_run(plan: ProblemPlan, over: Iterable[SearchState]) -> list[tuple[Any, Candidate]]:
    return [
        (search.plan.problem.dims, search.findings.ranked()[0])
        for search in over
        if search.plan.op is plan.op and search.findings.ranked()
    ]

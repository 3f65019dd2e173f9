"""``tune``: checks and plans the problems, then tunes them in one run for each kind of hardware."""

from __future__ import annotations

import functools
import os
import platform
import threading
from collections.abc import Mapping, Sequence

from optuna.exceptions import StorageInternalError

from tuning_db import Store, TuningDBError

from ..correctness.blind_ops import blind_among
from ..device import Device, by_hardware
from ..discovery.catalog import Catalog
from ..errors import RegistryError, StoreError
from ..paths import check_room
from ..problem import Problem
from .events import Note, Observer, Result
from .options import TuneOptions
from .planning.problems import ProblemPlan, check_shared
from .planning.problems import plan as plan_problems
from .planning.ranges import represented
from .processes import spawning
from .processes.cores import compiling_cores
from .search.samplers.names import sampler_named
from .search.studies import Studies, open_storage
from .side_by_side import side_by_side
from .tuning_run import TuningRun
from .workers import preloading
from .workers.crew import Crew


def tune(
    problems: Sequence[Problem],
    *,
    catalog: Catalog,
    device: Device | Sequence[Device],
    database: str | None = None,
    options: TuneOptions | None = None,
    observer: Observer = lambda _: None,
    counts: Mapping[Problem, int] | None = None,
    stop: threading.Event | None = None,
) -> tuple[Result, ...]:
    """Search, verify, measure and decide each problem on ``device``; store every trial and the winners.

    Several devices of one hardware identity share the problems; on each other hardware all problems are tuned, too.
    Problems that have a valid winner for this hardware, software, regime and source are reported and left alone, unless
    ``retune`` is among the options, or an implementation that takes part has never met the winner: it is then raced.
    Ctrl-C ends the run in order: what was measured is stored. ``counts``: how often a program calls each problem; what
    takes most of its time is then tuned first, and longest. ``stop`` ends the run as Ctrl-C does. Raises StoreError
    when the database cannot be used, UnknownNameError for an implementation that does not exist, InvalidArgumentError
    for a sampler or a storage that cannot be used, and PluginError for an op or an implementation that was added by a
    call in this process alone. An op whose tolerance accepts a result that was not computed is left out, and told;
    raises InvalidDefinitionError if there is no other. Raises CacheError where compilers cannot write, before the run
    or during it; what was measured is stored.
    """
    options = options or TuneOptions()
    _check_system()
    check_room()
    groups = by_hardware([device] if isinstance(device, Device) else device)
    wanted = represented(problems, counts or {}, catalog.op, every=options.all_sizes)
    for told in wanted.notes:
        observer(Note(told))
    try:
        with spawning.kept(preloading.ENTRY):
            studies = Studies(sampler_named(options.sampler), open_storage(options.storage))
            planned = [plan_problems(wanted.problems, catalog, group[0], options.implementations) for group in groups]
            planned = _checked(planned, catalog)
            cores = compiling_cores(groups[0][0], sum(map(len, groups)))
            with Store.open(database, fence=options.fence) as store:

                def run(number: int, observer: Observer, stopped: threading.Event) -> tuple[Result, ...]:
                    note, own = (lambda text: observer(Note(text))), cores[number :: len(groups)] or cores
                    crew = Crew(
                        groups[number], catalog.files, options.limits, note, cores=own, stop=stopped,
                        program=options.program,
                    )  # fmt: skip
                    told = (store, options, studies, observer, wanted.counts)
                    return TuningRun(planned[number], catalog, crew, *told).run()

                return side_by_side([functools.partial(run, number) for number in range(len(groups))], observer, stop)
    except TuningDBError as fault:
        raise StoreError(fault.message, hint=fault.hint) from fault
    except StorageInternalError as fault:
        raise StoreError(
            f"storage {options.storage!r}: {fault}", hint="what was measured is in the tuning database"
        ) from fault


def _checked(planned: Sequence[Sequence[ProblemPlan]], catalog: Catalog) -> list[tuple[ProblemPlan, ...]]:
    """The plans, those of ops with a fault of their own marked; the modules that they need begin to be imported.

    Raises the errors of ``tune`` that concern the plans.
    """
    faults = blind_among(plan.op for each in planned for plan in each)
    checked = [tuple(plan.with_fault(faults.get(plan.op.name, "")) for plan in each) for each in planned]
    plans = [plan for each in checked for plan in each]
    check_shared(plans, catalog)
    preloading.warm([plan for plan in plans if not plan.faulty])
    return checked


def _check_system() -> None:
    """Raise RegistryError where the processes of a run cannot be started and ended as they must be."""
    if not hasattr(os, "killpg"):
        raise RegistryError(
            f"tune needs a POSIX system, whose processes it can group and end; {platform.system()} has no os.killpg",
            hint="tune on Linux or in WSL",
        )

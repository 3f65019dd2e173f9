"""The planner: problems to jobs, for one model of device each; see ``grouping`` for what a job holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuning_db import JobQueue
from tuning_db.queue.entries import Added, Fence, FleetPlan, NewJob
from tuning_db.records import new_uid

from ..correctness.blind_ops import blind_among
from ..discovery.catalog import Catalog
from ..errors import InvalidArgumentError
from ..problem import Problem
from ..tuner.limits import Budget
from ..tuner.options import TuneOptions
from ..tuner.patience import Patience
from ..tuner.planning.problems import check_shared, plan
from ..tuner.planning.ranges import Represented, represented
from .grouping import Variants, device_named, grouped, variants_of_defaults
from .versions import versions_of

MOST_PROBLEMS = 8
"""Problems of a job by default: few enough that a lost worker costs minutes, and that the last jobs end together."""

CPU = "cpu"
"""The name that stands for the CPU of any machine."""


@dataclass(frozen=True)
class Planned:
    """A planner's outcome: what was queued, from how many problems, and notes for the user.

    ``faulty``: ops that were left out for a fault of theirs, which a note tells.
    """

    added: Added
    problems: int
    devices: Sequence[str]
    notes: Sequence[str] = ()
    faulty: Sequence[str] = ()


def plan_fleet(
    queue: JobQueue,
    problems: Sequence[Problem],
    devices: Sequence[str],
    *,
    catalog: Catalog,
    options: TuneOptions,
    counts: Mapping[Problem, int] | None = None,
    most_problems: int = MOST_PROBLEMS,
    most_attempts: int = 3,
) -> Planned:
    """Queue jobs for these models of devices (``"NVIDIA H200"``, ``"cpu"``). Problems in open jobs are left out.

    Each op has a plan of its own, which requires the versions here of what takes part in it. A job holds at most
    ``most_problems`` of one op that share compiled variants, and is given up after ``most_attempts``. What a program
    calls most often comes first. Raises InvalidArgumentError for limits below 1 and for no device, and the
    errors of ``tune`` that concern ops and implementations.
    """
    _check(devices, most_problems, most_attempts)
    wanted = represented(problems, counts or {}, catalog.op, every=options.all_sizes)
    faults = _faults(wanted.problems, catalog, options)
    wanted = _without(wanted, faults)
    variants = _variants(wanted, devices, catalog, options)
    jobs = [
        NewJob(device, group, float(sum(one.count for one in group)), most_attempts)
        for device in devices
        for group in grouped(wanted.problems, wanted.counts, catalog, most_problems, variants[device])
    ]
    added = [_add(queue, op, jobs, catalog, options) for op in dict.fromkeys(one.op for one in wanted.problems)]
    total = Added(sum(one.jobs for one in added), sum(one.problems for one in added), sum(one.already for one in added))
    return Planned(total, len(wanted.problems), tuple(devices), wanted.notes, tuple(faults))


def _variants(
    wanted: Represented, devices: Sequence[str], catalog: Catalog, options: TuneOptions
) -> dict[str, Variants | None]:
    """The variants of the problems' defaults for each model of device; None where nothing tells its architecture.

    Models of one architecture that are not here have equal variants.
    """
    there = {name: device_named(name) for name in devices}
    told = {
        device: variants_of_defaults(wanted.problems, catalog, device, options.implementations)
        for device in dict.fromkeys(there.values())
        if device is not None
    }
    return {name: None if device is None else told[device] for name, device in there.items()}


def _add(queue: JobQueue, op: str, jobs: Sequence[NewJob], catalog: Catalog, options: TuneOptions) -> Added:
    """Queue the jobs of one op; once, although it may be sent again while the database is away."""
    planner = f"{socket.gethostname()}:{os.getpid()}"
    asked = FleetPlan(new_uid(), planner, versions_of(catalog, {op}), stored_options(options))
    own = [job for job in jobs if job.problems[0].op == op]
    return Patience()(lambda: queue.add(asked, own))


def stored_options(options: TuneOptions) -> dict[str, Any]:
    """The options of a job's tuning run as plain data, see :func:`options_of`."""
    return {
        "seconds": options.budget.seconds, "trials": options.budget.trials, "sampler": options.sampler,
        "implementations": list(options.implementations), "retune": options.retune, "regime": options.regime,
    }  # fmt: skip


def options_of(stored: Mapping[str, Any], fence: Fence, patience_s: float, device_variance: float = 0.0) -> TuneOptions:
    """The options that :func:`stored_options` wrote, for one job; all of its problems, which the planner has chosen."""
    return TuneOptions(
        Budget(stored["seconds"], stored["trials"]),
        implementations=tuple(stored["implementations"]),
        retune=bool(stored["retune"]),
        all_sizes=True,
        regime=stored["regime"],
        sampler=stored["sampler"],
        patience_s=patience_s,
        details={"job": fence.job, "token": fence.token},
        device_variance=device_variance,
        fence=fence,
    )


def _check(devices: Sequence[str], most_problems: int, most_attempts: int) -> None:
    if not devices:
        raise InvalidArgumentError("no device to plan for", hint='expected models of GPUs, e.g. "NVIDIA H200", or cpu')
    for name, value in (("problems of a job", most_problems), ("attempts", most_attempts)):
        if value < 1:
            raise InvalidArgumentError(f"{name}: {value}", hint="expected 1 or more")


def _faults(problems: Sequence[Problem], catalog: Catalog, options: TuneOptions) -> dict[str, str]:
    """The reasons against ops that no worker would tune. Raises what every worker would, before anything is queued."""
    from ..device import Device

    faults = blind_among(catalog.op(problem.op) for problem in problems)
    by_op = {problem.op: problem for problem in reversed(problems)}
    check_shared(plan(list(by_op.values()), catalog, Device.best(), options.implementations), catalog)
    return faults


def _without(wanted: Represented, faults: Mapping[str, str]) -> Represented:
    """The problems of other ops, with a note on each op that is left out."""
    if not faults:
        return wanted
    kept = tuple(one for one in wanted.problems if one.op not in faults)
    notes = tuple(f"{op} is left out: {reason}" for op, reason in faults.items())
    return replace(wanted, problems=kept, notes=(*wanted.notes, *notes))

"""One job on one device: the tuner's run on the job's problems, and what it came to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tuning_db import JobQueue, LostDatabaseError, LostLeaseError
from tuning_db.queue.entries import Lease

from ..device import Device
from ..discovery.catalog import Catalog
from ..errors import CacheError, DeviceError, RegistryError
from ..problem import Problem
from ..tuner.events import Event, Note, ProblemSkipped, Result, RunEnded
from ..tuner.run import tune
from .planner import options_of

UNDECIDED = "undecided"
"""The beginning of a result's reason when its finals decided nothing, and another attempt may."""


class JobEnd(Enum):
    """How the work on a job ended."""

    DONE = "every problem is decided, or no candidate of it is right"
    FAILED = "an attempt failed"
    STOPPED = "the worker was told to stop"
    LOST = "the lease was lost"
    AWAY = "the database was out of reach"
    UNFIT = "this machine cannot go on: a full disk, a lost device"
    ASIDE = "the device became slower than its kind: what was decided is set aside"


@dataclass(frozen=True)
class RunLimits:
    """How long the database may be away, and how much devices of the model differ, see ``KindOfDevice.variance``."""

    patience_s: float
    device_variance: float = 0.0


@dataclass(frozen=True)
class JobOutcome:
    """The end of the work on a job, and a line about it."""

    end: JobEnd
    message: str


def run_job(
    lease: Lease,
    queue: JobQueue,
    database: str | None,
    device: Device,
    catalog: Catalog,
    tell: Callable[[str], None],
    stop: threading.Event,
    limits: RunLimits,
) -> JobOutcome:
    """Tune the problems of a lease that no earlier attempt has decided; ``stop`` ends it early.

    Trials are stored as they come; winners only while the lease holds.
    """
    try:
        decided = {(op, tuple(sorted(dims.items()))) for op, dims in queue.decided(lease.fence.job)}
        asked = [one for one in lease.problems if (one.op, tuple(sorted(one.dims.items()))) not in decided]
        told = {catalog.op(one.op).problem_of(dict(one.dims)): one.count for one in asked}
        watch = _Watch(tell)
        results: Sequence[Result] = ()
        if told:
            results = tune(
                list(told), catalog=catalog, device=device, database=database,
                options=options_of(lease.options, lease.fence, limits.patience_s, limits.device_variance),
                observer=watch,
                counts={one: count for one, count in told.items() if count}, stop=stop,
            )  # fmt: skip
    except (CacheError, DeviceError) as fault:
        return JobOutcome(JobEnd.UNFIT, _line(fault))
    except LostLeaseError as fault:
        return JobOutcome(JobEnd.LOST, fault.message)
    except LostDatabaseError as fault:
        return JobOutcome(JobEnd.AWAY, fault.message)
    except RegistryError as fault:
        return JobOutcome(_end_of(fault), _line(fault))
    return _outcome(list(told), results, watch, len(decided))


@dataclass
class _Watch:
    """Observes a run: passes on its notes, keeps how it ended and the problems that cannot be tuned here."""

    tell: Callable[[str], None]
    interrupted: bool = False
    skipped: frozenset[Problem] = frozenset()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self.tell(event.message)
        elif isinstance(event, ProblemSkipped):
            self.skipped |= {event.problem}
            self.tell(f"{event.problem}: {event.reason}")
        elif isinstance(event, RunEnded):
            self.interrupted = event.interrupted


def _outcome(problems: Sequence[Problem], results: Sequence[Result], watch: _Watch, before: int) -> JobOutcome:
    if watch.interrupted:
        return JobOutcome(JobEnd.STOPPED, f"{len(results)} of {len(problems)} problems were decided")
    open_ones = [result for result in results if result.verdict == "none" and result.reason.startswith(UNDECIDED)]
    missing = len(set(problems) - {result.problem for result in results} - watch.skipped)
    if open_ones or missing:
        why = open_ones[0].reason if open_ones else f"{missing} problems were left out"
        return JobOutcome(JobEnd.FAILED, f"{len(open_ones) + missing} of {len(problems)} problems: {why}")
    none = sum(result.verdict == "none" for result in results)
    told = [f"{before + len(results) - none} decided"]
    told += [f"{none} without a right candidate"] if none else []
    told += [f"{len(watch.skipped)} not possible on this device"] if watch.skipped else []
    return JobOutcome(JobEnd.DONE, ", ".join(told))


def _end_of(fault: RegistryError) -> JobEnd:
    if isinstance(fault.__cause__, LostLeaseError):
        return JobEnd.LOST
    return JobEnd.AWAY if isinstance(fault.__cause__, LostDatabaseError) else JobEnd.FAILED


def _line(fault: RegistryError) -> str:
    return " ".join(fault.message.split())

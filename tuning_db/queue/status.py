"""What a fleet is doing: jobs by state, workers, the latest failures, and the pace from which the time left follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Executable, func, or_, select
from sqlalchemy.orm import Session

from .clock import DatabaseSeconds
from .entries import DONE, FAILED, LEASED, QUEUED, SUPERSEDED
from .tables import FleetDecisionRow, FleetJobRow, FleetLeaseRow, FleetWorkerRow

_NOW = DatabaseSeconds()
_LATEST = 20
"""The most failures that are told."""
_RECENT_S = 86_400.0
"""Workers that were last seen before that are not told any more, whether they left or were killed."""
_PACE_S = 3600.0
"""The time back to which the pace is counted."""


@dataclass(frozen=True)
class JobCounts:
    """The jobs for one model of device, by state, and the number of problems that they have decided.

    Jobs that a plan under other versions has superseded are not counted.
    """

    device: str
    queued: int
    leased: int
    done: int
    failed: int
    decided: int
    seconds_left: float | None = None
    """An estimate from the leases that ended within the last hour, and the workers that are there; None without any."""

    @property
    def open(self) -> int:
        """The number of jobs that are not over."""
        return self.queued + self.leased


@dataclass(frozen=True)
class WorkerStatus:
    """A worker: its state, the job it holds (its op and the seconds since the lease began), and when it was seen."""

    uid: str
    host: str
    process: int
    device: str
    identity: str
    state: str
    message: str
    seen_s: float
    ended: bool
    op: str
    held_s: float | None
    done: int


@dataclass(frozen=True)
class JobFailure:
    """A lease that ended without the job being done."""

    op: str
    device: str
    host: str
    outcome: str
    message: str
    ago_s: float


@dataclass(frozen=True)
class FleetStatus:
    """Jobs by model of device, workers of the last day with the newest first, and the latest failures."""

    jobs: Sequence[JobCounts]
    workers: Sequence[WorkerStatus]
    failures: Sequence[JobFailure]

    @property
    def open(self) -> int:
        """The number of jobs that are not over."""
        return sum(counts.open for counts in self.jobs)

    @property
    def failed(self) -> int:
        """Jobs that were given up."""
        return sum(counts.failed for counts in self.jobs)


def read(session: Session) -> FleetStatus:
    """The status at this moment, by the clock of the database."""
    now = float(session.execute(select(_NOW)).scalar_one())
    return FleetStatus(_jobs(session, now), _workers(session, now), _failures(session, now))


def _jobs(session: Session, now: float) -> list[JobCounts]:
    counted: dict[str, dict[str, int]] = {}
    grouped = select(FleetJobRow.device, FleetJobRow.state, func.count()).where(
        or_(FleetJobRow.state != FAILED, ~FleetJobRow.message.startswith(SUPERSEDED))
    )
    for device, state, count in session.execute(grouped.group_by(FleetJobRow.device, FleetJobRow.state)):
        counted.setdefault(device, {})[state] = count
    join = select(FleetJobRow.device, func.count()).select_from(FleetDecisionRow).join(FleetJobRow)
    decided = _by_name(session, join.group_by(FleetJobRow.device))
    pace = _seconds_of_a_job(session, now)
    return [
        JobCounts(
            device, states.get(QUEUED, 0), states.get(LEASED, 0), states.get(DONE, 0), states.get(FAILED, 0),
            decided.get(device, 0), _left(states, pace.get(device)),
        )
        for device, states in sorted(counted.items())
    ]  # fmt: skip


def _by_name(session: Session, query: Executable) -> dict[str, int]:
    return {name: count for name, count in session.execute(query)}  # noqa: C416


def _seconds_of_a_job(session: Session, now: float) -> dict[str, float]:
    lease, job = FleetLeaseRow, FleetJobRow
    query = select(job.device, func.avg(lease.ended - lease.began)).join(job, job.id == lease.job_id)
    recent = query.where(lease.outcome == "done", lease.ended > now - _PACE_S).group_by(job.device)
    return {device: float(seconds) for device, seconds in session.execute(recent)}


def _left(states: dict[str, int], seconds: float | None) -> float | None:
    at_work = states.get(LEASED, 0)
    if seconds is None or not at_work:
        return None
    return (states.get(QUEUED, 0) + at_work / 2) * seconds / at_work


def _workers(session: Session, now: float) -> list[WorkerStatus]:
    worker, lease, job = FleetWorkerRow, FleetLeaseRow, FleetJobRow
    ended = select(lease.worker_id, func.count()).where(lease.outcome == "done").group_by(lease.worker_id)
    done = _by_name(session, ended)
    query = select(job.worker_id, job.op, lease.began).join(
        lease, (lease.job_id == job.id) & (lease.token == job.token)
    )
    held = {holder: (op, began) for holder, op, began in session.execute(query.where(job.state == LEASED))}
    found = []
    recent = worker.seen > now - _RECENT_S
    for row in session.execute(select(worker).where(recent).order_by(worker.started.desc(), worker.id)).scalars():
        op, began = held.get(row.id, ("", None))
        found.append(
            WorkerStatus(
                row.id, row.host, row.process, row.device, row.identity, row.state, row.message, now - row.seen,
                row.ended is not None, op, None if began is None else now - began, done.get(row.id, 0),
            )
        )  # fmt: skip
    return found


def _failures(session: Session, now: float) -> list[JobFailure]:
    lease, job, worker = FleetLeaseRow, FleetJobRow, FleetWorkerRow
    query = (
        select(job.op, job.device, worker.host, lease.outcome, lease.message, lease.ended)
        .join(job, job.id == lease.job_id)
        .join(worker, worker.id == lease.worker_id)
        .where(lease.outcome.in_(["failed", "expired", "set aside"]))
        .order_by(lease.ended.desc())
        .limit(_LATEST)
    )
    return [JobFailure(*row[:-1], now - (row[-1] or now)) for row in session.execute(query)]

"""Leases in SQL: a job is taken, renewed, completed or given back in one statement, or in one short transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, and_, insert, or_, select, update
from sqlalchemy.orm import Session

from .clock import DatabaseSeconds
from .entries import DONE, FAILED, LEASED, QUEUED, Fence, Lease, QueuedProblem
from .tables import FleetJobRow, FleetLeaseRow, FleetPlanRow

_NOW = DatabaseSeconds()
_RETRY_AFTER_S = 5.0
"""Seconds before a job that has failed is tried again, for each attempt so far."""


def expired() -> ColumnElement[bool]:
    """True for a job whose lease has run out."""
    return and_(FleetJobRow.state == LEASED, FleetJobRow.lease_until <= _NOW)


def held_by(fence: Fence) -> ColumnElement[bool]:
    """True for the job of the fence while its lease holds, by the clock of the database."""
    return and_(last_leased_by(fence), FleetJobRow.lease_until > _NOW)


def last_leased_by(fence: Fence) -> ColumnElement[bool]:
    """True for the job of the fence while nobody has leased it since, also after the lease has expired."""
    return and_(FleetJobRow.uid == fence.job, FleetJobRow.token == fence.token, FleetJobRow.state == LEASED)


def take(
    session: Session, worker: str, devices: Collection[str], plans: Collection[int], seconds: float
) -> Lease | None:
    """A lease of the next job of these plans for these models of devices; None if there is none to be had now.

    Next is the job of the greatest priority, then the oldest, that waits or whose lease has expired. Workers that ask
    at once get different jobs: a row that another one is taking is skipped. A worker that holds a lease gets that one
    again, for ``seconds`` from now, since the answer may have been lost.
    """
    holds = FleetJobRow.worker_id == worker, FleetJobRow.state == LEASED, FleetJobRow.lease_until > _NOW
    again = update(FleetJobRow).where(*holds).values(lease_until=_NOW + seconds).returning(FleetJobRow.id)
    held = session.execute(again, execution_options=_PLAIN).scalar()
    if held is not None:
        return _lease_of(session, held, worker)
    waits = and_(FleetJobRow.state == QUEUED, FleetJobRow.after <= _NOW)
    next_job = (
        select(FleetJobRow.id)
        .where(
            FleetJobRow.device.in_(sorted(devices)),
            FleetJobRow.plan_id.in_(sorted(plans)),
            FleetJobRow.attempts < FleetJobRow.most_attempts,
            or_(waits, expired()),
        )
        .order_by(FleetJobRow.priority.desc(), FleetJobRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    number = session.execute(next_job).scalar()
    if number is None:
        return None
    end_lease(session, number, "expired", "the worker did not renew it in time")
    taken = {
        "state": LEASED, "worker_id": worker, "token": FleetJobRow.token + 1, "attempts": FleetJobRow.attempts + 1,
        "lease_until": _NOW + seconds,
    }  # fmt: skip
    session.execute(update(FleetJobRow).where(FleetJobRow.id == number).values(taken), execution_options=_PLAIN)
    lease = _lease_of(session, number, worker)
    row = {"job_id": number, "token": lease.fence.token, "worker_id": worker, "outcome": "", "message": ""}
    session.execute(insert(FleetLeaseRow).values(**row, began=_NOW))
    return lease


def _lease_of(session: Session, number: int, worker: str) -> Lease:
    query = select(FleetJobRow, FleetPlanRow.options).join(FleetPlanRow).where(FleetJobRow.id == number)
    job, options = session.execute(query).one()
    problems = tuple(QueuedProblem(**one) for one in job.problems)
    fence = Fence(job.uid, job.token)
    return Lease(fence, worker, job.device, job.op, problems, options, job.attempts, job.most_attempts)


def renew(session: Session, fence: Fence, seconds: float) -> bool:
    """Extend a lease to ``seconds`` from now; False if it is lost, which stays so."""
    query = update(FleetJobRow).where(held_by(fence)).values(lease_until=_NOW + seconds)
    return session.execute(query.returning(FleetJobRow.id), execution_options=_PLAIN).first() is not None


def complete(session: Session, fence: Fence, message: str) -> bool:
    """Mark the job as done; False if the lease is lost."""
    return _leave(session, fence, DONE, "done", message, finished=_NOW, worker_id=None, lease_until=None)


def fail(session: Session, fence: Fence, message: str) -> bool:
    """Give a job back after a failed attempt: it waits for the next one, or has failed if that was the last.

    False if the lease is lost.
    """
    job = session.execute(select(FleetJobRow).where(held_by(fence)).with_for_update()).scalar()
    if job is None:
        return _ended_so(session, fence, "failed")
    if job.attempts >= job.most_attempts:
        return _leave(session, fence, FAILED, "failed", message, finished=_NOW, worker_id=None, lease_until=None)
    later = _NOW + _RETRY_AFTER_S * job.attempts
    return _leave(session, fence, QUEUED, "failed", message, after=later, worker_id=None, lease_until=None)


def hand_back(session: Session, fence: Fence, message: str) -> bool:
    """Give a job back that the worker cannot go on with, which does not count as an attempt; False if it is lost."""
    return _leave(session, fence, QUEUED, "returned", message, **_unused())


def set_aside(session: Session, fence: Fence, message: str) -> bool:
    """Give a job back whose lease is withdrawn, which does not count as an attempt, also after the lease has expired.

    False if another worker has leased it since.
    """
    return _leave(session, fence, QUEUED, "set aside", message, still=last_leased_by(fence), **_unused())


def _unused() -> dict[str, Any]:
    return {"attempts": FleetJobRow.attempts - 1, "worker_id": None, "lease_until": None}


def put_down(session: Session) -> int:
    """Mark jobs as failed whose last attempt's lease has expired; returns how many."""
    lost = expired(), FleetJobRow.attempts >= FleetJobRow.most_attempts
    query = select(FleetJobRow.id, FleetJobRow.attempts).where(*lost).with_for_update(skip_locked=True)
    found = session.execute(query).all()
    for number, attempts in found:
        end_lease(session, number, "expired", "the worker did not renew it in time")
        told = f"its worker was lost in each of {attempts} attempts"
        values = {"state": FAILED, "finished": _NOW, "message": told, "worker_id": None, "lease_until": None}
        session.execute(update(FleetJobRow).where(FleetJobRow.id == number).values(values), execution_options=_PLAIN)
    return len(found)


_PLAIN = {"synchronize_session": False}
"""The Session must not apply an update to objects that it holds: it holds none that are used afterwards."""


def _leave(
    session: Session,
    fence: Fence,
    state: str,
    outcome: str,
    message: str,
    still: ColumnElement[bool] | None = None,
    **values: Any,
) -> bool:
    """End the lease with an outcome, while it holds, or while ``still`` does.

    True also if it has ended so already, by a call whose answer was lost.
    """
    condition = held_by(fence) if still is None else still
    query = update(FleetJobRow).where(condition).values(state=state, message=message, **values)
    number = session.execute(query.returning(FleetJobRow.id), execution_options=_PLAIN).scalar()
    if number is not None:
        end_lease(session, number, outcome, message)
        return True
    return _ended_so(session, fence, outcome)


def _ended_so(session: Session, fence: Fence, outcome: str) -> bool:
    ended = select(FleetLeaseRow.token).join(FleetJobRow, FleetJobRow.id == FleetLeaseRow.job_id)
    told = FleetJobRow.uid == fence.job, FleetLeaseRow.token == fence.token, FleetLeaseRow.outcome == outcome
    return session.execute(ended.where(*told)).first() is not None


def end_lease(session: Session, job: int, outcome: str, message: str) -> None:
    """End the job's lease that has no outcome yet, if any."""
    query = update(FleetLeaseRow).where(FleetLeaseRow.job_id == job, FleetLeaseRow.outcome == "")
    session.execute(query.values(outcome=outcome, message=message, ended=_NOW), execution_options=_PLAIN)

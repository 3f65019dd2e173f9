"""Fencing: a decision of a job is stored only while the job's lease holds, and once for each problem of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from ..errors import InvalidRecordError, LostLeaseError
from ..models import DecisionRow, ProblemRow, WinnerRow
from ..records import new_uid
from ..rows import insert_new
from .clock import DatabaseSeconds
from .entries import QUEUED, Fence, QueuedProblem
from .leasing import expired, held_by, last_leased_by
from .tables import FleetDecisionRow, FleetJobRow

_NOW = DatabaseSeconds()


def hold(session: Session, fence: Fence) -> int:
    """The number of the fence's job, which nobody can lease until the transaction ends.

    Raises LostLeaseError if the lease does not hold any more.
    """
    number = session.execute(select(FleetJobRow.id).where(held_by(fence)).with_for_update()).scalar()
    if number is None:
        raise LostLeaseError(
            f"the lease {fence.token} of job {fence.job[:8]} has expired or was taken over; its winner was not stored",
            hint="its trials are kept; another worker goes on with the job",
        )
    return number


def record(session: Session, fence: Fence, job: int, problem: int, decision: int) -> None:
    """Store that the job has decided a problem. Raises InvalidRecordError if it did so before."""
    row = insert_new(session, FleetDecisionRow).values(
        job_id=job, problem_id=problem, token=fence.token, decision_id=decision
    )
    if session.execute(row.returning(FleetDecisionRow.problem_id)).first() is None:
        raise InvalidRecordError(f"job {fence.job[:8]} has decided this problem already; the second winner was refused")


def decided(session: Session, job: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(op, dims) of the problems that earlier leases of a job have decided."""
    query = (
        select(ProblemRow.op, ProblemRow.dims)
        .join(FleetDecisionRow, FleetDecisionRow.problem_id == ProblemRow.id)
        .join(FleetJobRow, FleetJobRow.id == FleetDecisionRow.job_id)
        .where(FleetJobRow.uid == job)
    )
    return [(op, dims) for op, dims in session.execute(query)]


def withdraw(session: Session, fence: Fence) -> int:
    """Set the decisions of a lease aside, also of a lost one: what they replaced are the winners again.

    A winner that has been replaced meanwhile stays. Returns how many problems are to be decided again: by the job if it
    waits, is held by this lease or by one that has expired; else by a new job, since another worker has left them out.
    """
    query = select(FleetJobRow).where(FleetJobRow.uid == fence.job).with_for_update()
    row = session.execute(query).scalar()
    if row is None:
        return 0
    job = row.id
    made = select(FleetDecisionRow.decision_id).where(
        FleetDecisionRow.job_id == job, FleetDecisionRow.token == fence.token
    )
    if not session.execute(select(FleetJobRow.id).where(FleetJobRow.id == job, _comes_again(fence))).first():
        _queue_again(session, row, fence)
    decisions = session.execute(select(DecisionRow).where(DecisionRow.id.in_(made))).scalars().all()
    for decision in decisions:
        winner = WinnerRow.decision_id == decision.id
        before = session.execute(_replaced_by(decision)).scalar()
        if before is None:
            session.execute(delete(WinnerRow).where(winner), execution_options=_PLAIN)
        else:
            session.execute(update(WinnerRow).where(winner).values(decision_id=before), execution_options=_PLAIN)
    gone = delete(FleetDecisionRow).where(FleetDecisionRow.job_id == job, FleetDecisionRow.token == fence.token)
    session.execute(gone, execution_options=_PLAIN)
    return len(decisions)


def _comes_again(fence: Fence) -> ColumnElement[bool]:
    """True for a job that will be leased, or is given back with this lease.

    A job whose lease has expired after its last attempt is put down.
    """
    again = and_(expired(), FleetJobRow.attempts < FleetJobRow.most_attempts)
    return or_(FleetJobRow.state == QUEUED, last_leased_by(fence), again)


def _queue_again(session: Session, job: FleetJobRow, fence: Fence) -> None:
    """Add a job of the problems that a lease of a job has decided, if any."""
    query = select(ProblemRow.op, ProblemRow.dims).join(FleetDecisionRow, FleetDecisionRow.problem_id == ProblemRow.id)
    of_lease = FleetDecisionRow.job_id == job.id, FleetDecisionRow.token == fence.token
    keys = {QueuedProblem(op, dims).key for op, dims in session.execute(query.where(*of_lease))}
    left = [one for one in job.problems if QueuedProblem(**one).key in keys]
    if left:
        same = {name: getattr(job, name) for name in ("plan_id", "device", "op", "priority", "most_attempts")}
        new = {"uid": new_uid(), "problems": left, "state": QUEUED, "attempts": 0, "token": 0, "message": ""}
        session.execute(insert(FleetJobRow).values(**same, **new, after=_NOW, created=_NOW))


def _replaced_by(decision: DecisionRow) -> Select[Any]:
    """The number of the winner that a decision has replaced; none if that is of other software."""
    return select(DecisionRow.id).where(
        DecisionRow.uid == decision.previous_uid,
        DecisionRow.problem_id == decision.problem_id,
        DecisionRow.hardware_id == decision.hardware_id,
        DecisionRow.software_id == decision.software_id,
    )


_PLAIN = {"synchronize_session": False}

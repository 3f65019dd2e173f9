"""Fencing: a decision of a job is stored only while the job's lease holds, and once for each problem of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, select, update
from sqlalchemy.orm import Session

from ..errors import InvalidRecordError, LostLeaseError
from ..models import DecisionRow, ProblemRow, WinnerRow
from ..rows import insert_new
from .entries import Fence
from .leasing import held_by
from .tables import FleetDecisionRow, FleetJobRow


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
    """Set the decisions of a lease aside, which must hold: what they replaced are the winners again.

    A winner that has been replaced meanwhile stays. Returns how many problems are to be decided again.
    """
    job = hold(session, fence)
    made = select(FleetDecisionRow.decision_id).where(
        FleetDecisionRow.job_id == job, FleetDecisionRow.token == fence.token
    )
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


def _replaced_by(decision: DecisionRow) -> Select[Any]:
    """The number of the winner that a decision has replaced; none if that is of other software."""
    return select(DecisionRow.id).where(
        DecisionRow.uid == decision.previous_uid,
        DecisionRow.problem_id == decision.problem_id,
        DecisionRow.hardware_id == decision.hardware_id,
        DecisionRow.software_id == decision.software_id,
    )


_PLAIN = {"synchronize_session": False}

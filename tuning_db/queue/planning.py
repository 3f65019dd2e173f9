"""Plans in SQL: what a planner adds, beside the jobs that are open already."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, insert, or_, select, text, update
from sqlalchemy.orm import Session

from ..records import new_uid
from . import leasing
from .clock import DatabaseSeconds
from .entries import FAILED, LEASED, QUEUED, SUPERSEDED, Added, FleetPlan, NewJob, QueuedProblem
from .tables import FleetJobRow, FleetPlanRow

_NOW = DatabaseSeconds()
_PLANNING_LOCK = 0x6B72_706C
"""Number of the advisory lock on a PostgreSQL server that a planner holds; any number would do."""
_Place = tuple[str, str]
"""The model of device and the key of a problem."""


def add(session: Session, plan: FleetPlan, jobs: Sequence[NewJob]) -> Added:
    """Add a plan with its jobs, less the problems of open jobs, see ``JobQueue.add``."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _PLANNING_LOCK})
    if session.execute(select(FleetPlanRow.id).where(FleetPlanRow.uid == plan.uid)).first() is not None:
        return Added(0, 0, 0)
    asked = {(job.device, problem.key) for job in jobs for problem in job.problems}
    _supersede(session, plan, asked)
    open_ones = _open_problems(session, plan)
    left = [(job, _new_problems(job, open_ones)) for job in jobs]
    kept = [(job, problems) for job, problems in left if problems]
    given, added = sum(len(job.problems) for job in jobs), sum(len(problems) for _, problems in kept)
    if kept:
        _insert(session, plan, kept)
    return Added(len(kept), added, given - added)


def _plans(session: Session) -> list[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """(number, requires, options) of every plan that has an open job."""
    jobs = select(FleetJobRow.plan_id).where(FleetJobRow.state.in_([QUEUED, LEASED]))
    query = select(FleetPlanRow.id, FleetPlanRow.requires, FleetPlanRow.options).where(FleetPlanRow.id.in_(jobs))
    return [(number, requires, options) for number, requires, options in session.execute(query)]


def _open_problems(session: Session, plan: FleetPlan) -> set[_Place]:
    """Every problem of an open job that does what the plan asks: under its versions, regime and retuning."""
    asked = plan.options.get("regime"), bool(plan.options.get("retune"))
    alike = [
        number
        for number, requires, options in _plans(session)
        if requires == plan.requires and (options.get("regime"), bool(options.get("retune"))) == asked
    ]
    is_open = FleetJobRow.plan_id.in_(alike), FleetJobRow.state.in_([QUEUED, LEASED])
    query = select(FleetJobRow.device, FleetJobRow.problems).where(*is_open)
    return {(device, QueuedProblem(**one).key) for device, problems in session.execute(query) for one in problems}


def _supersede(session: Session, plan: FleetPlan, asked: Collection[_Place]) -> None:
    """Take the problems of a plan out of the jobs under other versions that nobody works on, for its regime.

    A job that has no problem left has failed: its versions are not those of the fleet any more.
    """
    others = [
        number
        for number, requires, options in _plans(session)
        if requires != plan.requires and options.get("regime") == plan.options.get("regime")
    ]
    idle = and_(FleetJobRow.plan_id.in_(others), or_(FleetJobRow.state == QUEUED, leasing.expired()))
    query = select(FleetJobRow.id, FleetJobRow.device, FleetJobRow.problems).where(idle).with_for_update()
    for number, device, problems in session.execute(query).all():
        left = [one for one in problems if (device, QueuedProblem(**one).key) not in asked]
        if left == problems:
            continue
        values: dict[str, Any] = {"problems": left}
        if not left:
            leasing.end_lease(session, number, "expired", "the worker did not renew it in time")
            told = f"{SUPERSEDED} {plan.uid[:8]}, which requires other versions"
            values = {"state": FAILED, "finished": _NOW, "message": told, "worker_id": None, "lease_until": None}
        session.execute(
            update(FleetJobRow).where(FleetJobRow.id == number).values(values),
            execution_options={"synchronize_session": False},
        )


def _new_problems(job: NewJob, known: set[_Place]) -> list[QueuedProblem]:
    """The job's problems that are not ``known``, to which they are added."""
    found = []
    for problem in job.problems:
        place = (job.device, problem.key)
        if place not in known:
            known.add(place)
            found.append(problem)
    return found


def _insert(session: Session, plan: FleetPlan, jobs: Sequence[tuple[NewJob, Sequence[QueuedProblem]]]) -> None:
    values = {"uid": plan.uid, "planner": plan.planner, "requires": dict(plan.requires), "options": dict(plan.options)}
    number = session.execute(
        insert(FleetPlanRow).values(**values, created=_NOW).returning(FleetPlanRow.id)
    ).scalar_one()
    now = session.execute(select(_NOW)).scalar_one()
    rows = [
        {
            "uid": new_uid(), "plan_id": number, "device": job.device, "op": problems[0].op,
            "problems": [{"op": one.op, "dims": dict(one.dims), "count": one.count} for one in problems],
            "priority": job.priority, "state": QUEUED, "attempts": 0, "most_attempts": job.most_attempts, "token": 0,
            "after": now, "created": now, "message": "",
        }
        for job, problems in jobs
    ]  # fmt: skip
    session.execute(insert(FleetJobRow), rows)

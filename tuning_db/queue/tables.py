"""The tables of the work queue. They refer to problems and decisions, and nothing refers to them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from ..models import SERIAL, StoredRow

QUEUE = 5
"""The schema version that added these tables."""


class FleetPlanRow(StoredRow):
    """One call of a planner: the versions that a worker must have, and the options of its jobs."""

    __tablename__ = "fleet_plan"

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True)
    uid: Mapped[str] = mapped_column(String(64), unique=True)
    planner: Mapped[str] = mapped_column(Text)
    requires: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any]]
    created: Mapped[float]


class FleetWorkerRow(StoredRow):
    """One worker: a process with one device. ``identity`` is the device's UUID, or the host's name for a CPU."""

    __tablename__ = "fleet_worker"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    process: Mapped[int]
    device: Mapped[str] = mapped_column(String(255))
    identity: Mapped[str] = mapped_column(String(255))
    software: Mapped[dict[str, Any]]
    started: Mapped[float]
    seen: Mapped[float]
    ended: Mapped[float | None]
    state: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)


class FleetJobRow(StoredRow):
    """Problems of one op for one model of device, which one worker tunes at a time.

    ``token`` grows with every lease, so that an earlier holder is told from the present one. ``attempts`` counts the
    leases that were used up. ``after``: not before this instant, so that a failed job is not tried at once again.
    """

    __tablename__ = "fleet_job"
    __table_args__ = (Index("fleet_job_to_lease", "state", "device", "priority", "id"),)

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True)
    uid: Mapped[str] = mapped_column(String(64), unique=True)
    plan_id: Mapped[int] = mapped_column(SERIAL, ForeignKey("fleet_plan.id"), index=True)
    device: Mapped[str] = mapped_column(String(255))
    op: Mapped[str] = mapped_column(String(255))
    problems: Mapped[list[Any]] = mapped_column(JSON)
    priority: Mapped[float]
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int]
    most_attempts: Mapped[int]
    token: Mapped[int] = mapped_column(BigInteger)
    worker_id: Mapped[str | None] = mapped_column(ForeignKey("fleet_worker.id"))
    lease_until: Mapped[float | None]
    after: Mapped[float]
    created: Mapped[float]
    finished: Mapped[float | None]
    message: Mapped[str] = mapped_column(Text)


class FleetLeaseRow(StoredRow):
    """One lease of a job, from its beginning to its ``outcome``, which is "" as long as the lease may be held."""

    __tablename__ = "fleet_lease"

    job_id: Mapped[int] = mapped_column(SERIAL, ForeignKey("fleet_job.id"), primary_key=True)
    token: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    worker_id: Mapped[str] = mapped_column(ForeignKey("fleet_worker.id"), index=True)
    began: Mapped[float]
    ended: Mapped[float | None]
    outcome: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)


class FleetDecisionRow(StoredRow):
    """A problem that a job has decided: the key lets a job decide each problem once."""

    __tablename__ = "fleet_decision"

    job_id: Mapped[int] = mapped_column(SERIAL, ForeignKey("fleet_job.id"), primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), primary_key=True)
    token: Mapped[int] = mapped_column(BigInteger)
    decision_id: Mapped[int] = mapped_column(SERIAL, ForeignKey("decision.id"))


class FleetCalibrationRow(StoredRow):
    """The time of one calibration entry on one device; ``device`` is the name of its model."""

    __tablename__ = "fleet_calibration"
    __table_args__ = (Index("fleet_calibration_of_device", "device", "entry", "at"),)

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True)
    worker_id: Mapped[str] = mapped_column(ForeignKey("fleet_worker.id"))
    device: Mapped[str] = mapped_column(String(255))
    identity: Mapped[str] = mapped_column(String(255))
    entry: Mapped[str] = mapped_column(String(255))
    us: Mapped[float]
    at: Mapped[float]


ALL = StoredRow.metadata
"""Every table of the database: those of ``models``, and those of the queue."""

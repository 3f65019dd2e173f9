"""Version 5: the work queue of a fleet. Trials, decisions and winners stay as they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Adds the tables of the queue, which are empty."""
    op.create_table(
        "fleet_plan",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("uid", sa.String(64), nullable=False),
        sa.Column("planner", sa.Text, nullable=False),
        sa.Column("requires", sa.JSON, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_plan"),
        sa.UniqueConstraint("uid", name="uq_fleet_plan_uid"),
    )
    op.create_table(
        "fleet_worker",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("process", sa.Integer, nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("identity", sa.String(255), nullable=False),
        sa.Column("software", sa.JSON, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_worker"),
    )
    _jobs()
    _of_jobs()


def _jobs() -> None:
    op.create_table(
        "fleet_job",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("uid", sa.String(64), nullable=False),
        sa.Column("plan_id", SERIAL, nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("op", sa.String(255), nullable=False),
        sa.Column("problems", sa.JSON, nullable=False),
        sa.Column("priority", sa.Double, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("most_attempts", sa.Integer, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("worker_id", sa.String(64)),
        sa.Column("lease_until", sa.Double),
        sa.Column("after", sa.Double, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("finished", sa.Double),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_job"),
        sa.UniqueConstraint("uid", name="uq_fleet_job_uid"),
        sa.ForeignKeyConstraint(["plan_id"], ["fleet_plan.id"], name="fk_fleet_job_plan_id"),
        sa.ForeignKeyConstraint(["worker_id"], ["fleet_worker.id"], name="fk_fleet_job_worker_id"),
    )
    op.create_index("ix_fleet_job_plan_id", "fleet_job", ["plan_id"])
    op.create_index("fleet_job_to_lease", "fleet_job", ["state", "device", "priority", "id"])


def _of_jobs() -> None:
    op.create_table(
        "fleet_lease",
        sa.Column("job_id", SERIAL, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("began", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "token", name="pk_fleet_lease"),
        sa.ForeignKeyConstraint(["job_id"], ["fleet_job.id"], name="fk_fleet_lease_job_id"),
        sa.ForeignKeyConstraint(["worker_id"], ["fleet_worker.id"], name="fk_fleet_lease_worker_id"),
    )
    op.create_index("ix_fleet_lease_worker_id", "fleet_lease", ["worker_id"])
    op.create_table(
        "fleet_decision",
        sa.Column("job_id", SERIAL, nullable=False),
        sa.Column("problem_id", sa.Integer, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("decision_id", SERIAL, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "problem_id", name="pk_fleet_decision"),
        sa.ForeignKeyConstraint(["job_id"], ["fleet_job.id"], name="fk_fleet_decision_job_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_fleet_decision_problem_id"),
        sa.ForeignKeyConstraint(["decision_id"], ["decision.id"], name="fk_fleet_decision_decision_id"),
    )
    op.create_table(
        "fleet_calibration",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("identity", sa.String(255), nullable=False),
        sa.Column("entry", sa.String(255), nullable=False),
        sa.Column("us", sa.Double, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_calibration"),
        sa.ForeignKeyConstraint(["worker_id"], ["fleet_worker.id"], name="fk_fleet_calibration_worker_id"),
    )
    op.create_index("fleet_calibration_of_device", "fleet_calibration", ["device", "entry", "at"])

"""Version 1: the first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes every table of version 1."""
    _identities()
    _runs_and_trials()
    _decisions()


def _identities() -> None:
    for name in ("hardware", "software"):
        op.create_table(name, *_identity(), sa.Column("identity", sa.JSON, nullable=False))
    op.create_table("protocol", *_identity(), _text("regime", 64), sa.Column("details", sa.JSON, nullable=False))
    op.create_table(
        "problem",
        *_identity(),
        _text("op", 255),
        sa.Column("op_version", sa.Integer, nullable=False),
        _text("static_key"),
        sa.Column("dims", sa.JSON, nullable=False),
        sa.Index("problem_neighbours", "op", "static_key"),
    )
    op.create_table("implementation", *_identity(), _text("op", 255), _text("name", 255), _text("fingerprint", 255))
    op.create_table(
        "candidate",
        *_identity(),
        _reference("implementation", index=True),
        sa.Column("config", sa.JSON, nullable=False),
    )


def _runs_and_trials() -> None:
    op.create_table(
        "run",
        _text("id", 64, primary_key=True),
        _reference("hardware"),
        _reference("software"),
        _instant("started"),
        _instant("ended", nullable=True),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("summary", sa.JSON, nullable=False),
    )
    op.create_table(
        "trial",
        *_measured(),
        _reference("run", sa.String(64), index=True),
        _text("status", 64),
        _text("message"),
        _number("median_us", nullable=True),
        sa.Column("samples", sa.JSON, nullable=False),
        sa.Column("censored", sa.Boolean, nullable=False),
        _text("stop_reason"),
        _text("artifact_hash", 255),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Index("trial_lookup", "problem_id", "hardware_id", "software_id", "protocol_id", "candidate_id"),
    )


def _decisions() -> None:
    op.create_table(
        "decision",
        *_measured(),
        _reference("run", sa.String(64)),
        _number("median_us"),
        *(_number(name, nullable=True) for name in ("floor_us", "ratio", "lo", "hi", "aa")),
        _text("verdict"),
        sa.Column("baselines", sa.JSON, nullable=False),
        _text("trial_uid", 64, nullable=True),
        _text("previous_uid", 64, nullable=True),
        sa.Index("decision_history", "problem_id", "hardware_id"),
    )
    op.create_table(
        "final",
        _reference("decision", _serial(), primary_key=True),
        sa.Column("ordinal", sa.Integer, primary_key=True),
        _reference("candidate", nullable=True),
        _text("role", 16),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("block", "round", "position")),
        _number("us"),
    )
    op.create_table(
        "winner",
        *(_reference(name, primary_key=True) for name in ("problem", "hardware", "software")),
        _text("regime", 64, primary_key=True),
        _reference("decision", _serial()),
    )


def _serial() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _identity() -> tuple[sa.Column[Any], ...]:
    return sa.Column("id", sa.Integer, primary_key=True), _text("key", 64, unique=True)


def _measured() -> tuple[sa.Column[Any], ...]:
    """Columns that trials and decisions share: row number, uid, identities and time."""
    parts = ("problem", "candidate", "hardware", "software", "protocol")
    return (
        sa.Column("id", _serial(), primary_key=True),
        _text("uid", 64, unique=True),
        *(_reference(name) for name in parts),
        _instant("created"),
    )


def _reference(name: str, kind: sa.types.TypeEngine[Any] | None = None, **options: Any) -> sa.Column[Any]:
    # a column in a primary key must not become a serial of its own
    kind = kind or sa.Integer()
    options = {"nullable": False, **options}
    return sa.Column(f"{name}_id", kind, sa.ForeignKey(f"{name}.id"), autoincrement=False, **options)


def _text(name: str, length: int | None = None, **options: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text() if length is None else sa.String(length), **{"nullable": False, **options})


def _number(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _instant(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)

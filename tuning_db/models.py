"""The tables: one fixed schema for all ops. JSON columns are read whole, never queried.

Identities (hardware, problem, candidate, ...) are stored once, under ``key``, their SHA-256. Records that refer to one
another across databases (a decision to its trial and its predecessor) do so by ``uid``, so that a part of a database
can be imported without the rest. Trials, decisions and finals are only ever added.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Double, ForeignKey, Index, Integer, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""Type of the row numbers of tables that grow with every measurement (SQLite's rowid needs the name INTEGER)."""


NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""Patterns for the names of constraints and indexes, so that a later migration can refer to them."""


def parsed_json(text: str) -> Any:
    """The value of JSON as ``json.loads`` returns it, in a quarter of its time for the usual values.

    None for what is no JSON: the record that is made of it is refused, and the other rows of a query are read.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # numbers that are not finite, say
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Instant(TypeDecorator[datetime]):
    """Column type of an instant: a datetime in UTC on the Python side, whether or not the database keeps time zones.

    None for what is no instant, as SQLite can hold in any column.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """``value`` in UTC, because SQLite does not store the time zone."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """``value`` in UTC: SQLite answers without a zone, a server in the zone of its session."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        """The conversion of a column's values, see :meth:`process_result_value`."""
        convert = super().result_processor(dialect, coltype)
        if convert is None:
            return None

        def converted(value: Any) -> datetime | None:
            try:
                return convert(value)
            except (ArithmeticError, TypeError, ValueError):
                return None

        def of_file(value: Any) -> datetime | None:
            try:  # what stands in nearly every row, without the conversions from type to type
                return datetime.fromisoformat(value + "+00:00")
            except (TypeError, ValueError):
                return converted(value)

        return of_file if dialect.name == "sqlite" else converted


class StoredRow(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012
        dict[str, Any]: JSON,
        list[float]: JSON,
        list[str]: JSON,
        datetime: Instant,
        float: Double,
    }


_FIRST = -1
"""The order of columns by which rows are found: SQLite reads a row from its beginning, and samples are long."""


class Keyed(StoredRow):
    """Base of the tables of identities."""

    __abstract__ = True

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=_FIRST)
    key: Mapped[str] = mapped_column(String(64), unique=True, sort_order=_FIRST)


class HardwareRow(Keyed):
    """A hardware identity as JSON."""

    __tablename__ = "hardware"

    identity: Mapped[dict[str, Any]]


class SoftwareRow(Keyed):
    """A software identity as JSON: versions of driver, CUDA, torch, triton, compiler."""

    __tablename__ = "software"

    identity: Mapped[dict[str, Any]]


class ProtocolRow(Keyed):
    """A protocol: the regime ("cold", "hot") and every other detail of timing."""

    __tablename__ = "protocol"

    regime: Mapped[str] = mapped_column(String(64))
    details: Mapped[dict[str, Any]]


class ProblemRow(Keyed):
    """A problem: an op at one version with its dimensions. Neighbours have equal ``static_key``."""

    __tablename__ = "problem"
    __table_args__ = (Index("problem_neighbours", "op", "static_key"),)

    op: Mapped[str] = mapped_column(String(255))
    op_version: Mapped[int]
    static_key: Mapped[str] = mapped_column(Text)
    dims: Mapped[dict[str, Any]]


class ImplementationRow(Keyed):
    """An implementation of an op, with the fingerprint of its source."""

    __tablename__ = "implementation"

    op: Mapped[str] = mapped_column(String(255))
    name: Mapped[str] = mapped_column(String(255))
    fingerprint: Mapped[str] = mapped_column(String(255))


class CandidateRow(Keyed):
    """An implementation and one of its configs."""

    __tablename__ = "candidate"

    implementation_id: Mapped[int] = mapped_column(ForeignKey("implementation.id"), index=True)
    config: Mapped[dict[str, Any]]


class RunRow(StoredRow):
    """One tuning run; its id is a UUID, so that runs of several databases merge."""

    __tablename__ = "run"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"))
    software_id: Mapped[int] = mapped_column(ForeignKey("software.id"))
    started: Mapped[datetime]
    ended: Mapped[datetime | None]
    details: Mapped[dict[str, Any]]
    summary: Mapped[dict[str, Any]]


TRIAL_FIELDS = (
    "status", "message", "median_us", "censored", "stop_reason", "artifact_hash", "details", "uid", "created",
)  # fmt: skip
DECISION_FIELDS = (
    "median_us", "floor_us", "ratio", "lo", "hi", "aa", "verdict", "baselines", "trial_uid", "uid", "created",
    "artifact_hash",
)  # fmt: skip
FINAL_FIELDS = ("role", "block", "round", "position", "us")
"""Columns that hold a field of the same name of a trial, a decision or a final, unchanged."""


class Measured(StoredRow):
    """Base of the tables of trials and decisions."""

    __abstract__ = True

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True, sort_order=_FIRST)
    uid: Mapped[str] = mapped_column(String(64), unique=True, sort_order=_FIRST)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), sort_order=_FIRST)
    candidate_id: Mapped[int] = mapped_column(ForeignKey("candidate.id"), sort_order=_FIRST)
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"), sort_order=_FIRST)
    software_id: Mapped[int] = mapped_column(ForeignKey("software.id"), sort_order=_FIRST)
    protocol_id: Mapped[int] = mapped_column(ForeignKey("protocol.id"), sort_order=_FIRST)
    created: Mapped[datetime] = mapped_column(sort_order=_FIRST)


class TrialRow(Measured):
    """One candidate tried on one problem."""

    __tablename__ = "trial"
    __table_args__ = (Index("trial_lookup", "problem_id", "hardware_id", "software_id", "protocol_id", "candidate_id"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    status: Mapped[str] = mapped_column(String(64))
    message: Mapped[str] = mapped_column(Text)
    median_us: Mapped[float | None]
    samples: Mapped[list[float]]
    censored: Mapped[bool]
    stop_reason: Mapped[str] = mapped_column(Text)
    artifact_hash: Mapped[str] = mapped_column(String(255))
    details: Mapped[dict[str, Any]]


class DecisionRow(Measured):
    """A decision of the finals of one problem. ``previous_uid`` and ``trial_uid`` need not be in this database.

    ``ratio`` with its interval ``lo`` to ``hi`` is against the incumbent, ``default_ratio`` with its interval
    ``default_lo`` to ``default_hi`` against the default.
    """

    __tablename__ = "decision"
    __table_args__ = (Index("decision_history", "problem_id", "hardware_id"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"))
    median_us: Mapped[float]
    floor_us: Mapped[float | None]
    ratio: Mapped[float | None]
    lo: Mapped[float | None]
    hi: Mapped[float | None]
    aa: Mapped[float | None]
    verdict: Mapped[str] = mapped_column(Text)
    baselines: Mapped[dict[str, Any]]
    default_ratio: Mapped[float | None]
    default_lo: Mapped[float | None]
    default_hi: Mapped[float | None]
    ties: Mapped[list[str]] = mapped_column(server_default="[]")
    transfers: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    artifact_hash: Mapped[str] = mapped_column(String(255), server_default="")
    trial_uid: Mapped[str | None] = mapped_column(String(64))
    previous_uid: Mapped[str | None] = mapped_column(String(64))


class FinalRow(StoredRow):
    """One measurement of the finals, in the order it was given; without a candidate it is the floor's device copy."""

    __tablename__ = "final"

    decision_id: Mapped[int] = mapped_column(SERIAL, ForeignKey("decision.id"), primary_key=True)
    ordinal: Mapped[int] = mapped_column(primary_key=True)
    candidate_id: Mapped[int | None] = mapped_column(ForeignKey("candidate.id"))
    role: Mapped[str] = mapped_column(String(16))
    block: Mapped[int]
    round: Mapped[int]
    position: Mapped[int]
    us: Mapped[float]


class WinnerRow(StoredRow):
    """The decision that is the winner now. The only rows that change."""

    __tablename__ = "winner"

    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), primary_key=True)
    hardware_id: Mapped[int] = mapped_column(ForeignKey("hardware.id"), primary_key=True)
    software_id: Mapped[int] = mapped_column(ForeignKey("software.id"), primary_key=True)
    regime: Mapped[str] = mapped_column(String(64), primary_key=True)
    decision_id: Mapped[int] = mapped_column(SERIAL, ForeignKey("decision.id"))


class ReleaseRow(StoredRow):
    """A release: winners with their evidence, as compressed lines of the exchange format. It never changes."""

    __tablename__ = "release_set"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    id: Mapped[str] = mapped_column(String(64), index=True)
    created: Mapped[datetime]
    winners: Mapped[int]
    content: Mapped[bytes]

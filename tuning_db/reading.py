"""Queries, one joined SELECT each, and the records made of their rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from . import older_versions
from .database.bad_rows import readable
from .identities import CandidateKey, Environment, ProblemKey, Protocol
from .keys import finite_or_none, plain_mapping, plain_text
from .models import (
    DECISION_FIELDS,
    FINAL_FIELDS,
    TRIAL_FIELDS,
    CandidateRow,
    DecisionRow,
    FinalRow,
    HardwareRow,
    ImplementationRow,
    ProblemRow,
    ProtocolRow,
    RunRow,
    SoftwareRow,
    StoredRow,
    TrialRow,
    WinnerRow,
)
from .records import Decision, Final, Interval, StoredRun, Trial, times, transfers_of
from .referred import TOGETHER, Referred
from .schema import LATEST

SCHEMA_VERSION = "schema_version"
"""The name in a session's ``info`` under which the version of the database's schema stands."""

_PARTS = (ProblemRow, CandidateRow, ImplementationRow, HardwareRow, SoftwareRow, ProtocolRow)
_NUMBERS = (
    TrialRow.problem_id, TrialRow.candidate_id, TrialRow.hardware_id, TrialRow.software_id, TrialRow.protocol_id,
)  # fmt: skip
_TEXTS = ("uid", "status", "message", "stop_reason", "artifact_hash")
Parts = tuple[ProblemRow, CandidateRow, ImplementationRow, HardwareRow, SoftwareRow, ProtocolRow]


def select_trials() -> Select[Any]:
    """Query of trials with all that they refer to: rows of (TrialRow, \\*Parts), for :func:`trials_of`."""
    return _with_parts(cast("Select[Any]", select(TrialRow, *_PARTS)), TrialRow)


def select_decisions() -> Select[Any]:
    """Query of decisions with all that they refer to: rows of (DecisionRow, \\*Parts), for :func:`decisions_of`."""
    return _with_parts(cast("Select[Any]", select(DecisionRow, *_PARTS)), DecisionRow)


def select_winners() -> Select[Any]:
    """Query of the decisions that are winners now, for :func:`decisions_of`."""
    return select_decisions().join(WinnerRow, WinnerRow.decision_id == DecisionRow.id)


def narrowed(query: Select[Any], *wanted: tuple[InstrumentedAttribute[Any], object | None]) -> Select[Any]:
    """``query`` with the condition that each column has the value beside it; a value of None is no condition."""
    return query.where(*(column == value for column, value in wanted if value is not None))


def trials_of(session: Session, query: Select[Any]) -> Iterator[tuple[TrialRow, Trial]]:
    """(row, trial) of each row of a :func:`select_trials` query."""
    shared = _BuiltOnce()

    def made(found: Any) -> tuple[TrialRow, Trial]:
        row, *parts = found
        return row, _trial(row, shared.of(cast(Parts, tuple(parts))))

    return readable(session, "trial", session.execute(query), made)


def select_trial_columns(*names: str) -> Select[Any]:
    """Query of these columns of trials, for :func:`each_trial`."""
    return select(*_NUMBERS, *(getattr(TrialRow, name) for name in names))


def each_trial(session: Session, query: Select[Any], names: Sequence[str]) -> Iterator[Trial]:
    """The trial of each row of a :func:`select_trial_columns` query of ``names``, a thousand rows at a time.

    Of a row only what no column of its type can hold is checked: SQLite puts anything into any column.
    """
    referred = Referred(session)
    rows = session.connection().execute(query.execution_options(yield_per=TOGETHER))
    for part in rows.partitions():
        yield from _of_columns(session, referred, names, part)


def _of_columns(session: Session, referred: Referred, names: Sequence[str], part: Sequence[Any]) -> Iterator[Trial]:
    problems, candidates, hardware, software, protocols, *_ = zip(*part, strict=True)
    problem, candidate = referred.problems(problems), referred.candidates(candidates)
    protocol, _, _ = referred.protocols(protocols), referred.hardware(hardware), referred.software(software)

    def made(row: Any) -> Trial:
        p, c, h, s, t, *fields = row
        told = {"samples": (), "details": {}, **dict(zip(names, fields, strict=True))}
        _check_columns(told)
        told["samples"] = times(told["samples"])
        trial = object.__new__(Trial)  # what its __post_init__ copies takes longer than all else
        trial.__dict__.update(
            told, problem=problem[p], candidate=candidate[c], environment=referred.environment(h, s),
            protocol=protocol[t],
        )  # fmt: skip
        return trial

    return readable(session, "trial", part, made)


def decisions_of(session: Session, query: Select[Any]) -> Iterator[tuple[str, Decision]]:
    """(uid of the run, decision) of each row of a :func:`select_decisions` query."""
    shared = _BuiltOnce()
    version = session.info.get(SCHEMA_VERSION, LATEST)

    def made(found: Any) -> tuple[str, Decision]:
        row, *parts = found
        identities = shared.of(cast(Parts, tuple(parts)))
        return plain_text(row.run_id), _decision(older_versions.completed(row, version), identities)

    return readable(session, "decision", session.execute(older_versions.without_new_columns(query, version)), made)


def finals_of(session: Session, decision_uid: str) -> list[Final]:
    """The finals of a decision, in the order of their measurement."""
    query = (
        select(FinalRow, CandidateRow, ImplementationRow)
        .join(DecisionRow, FinalRow.decision_id == DecisionRow.id)
        .outerjoin(CandidateRow, FinalRow.candidate_id == CandidateRow.id)
        .outerjoin(ImplementationRow, CandidateRow.implementation_id == ImplementationRow.id)
        .where(DecisionRow.uid == decision_uid)
        .order_by(FinalRow.ordinal)
    )
    return list(readable(session, "final", session.execute(query), lambda row: _final(*row)))


def runs_of(session: Session, query: Select[Any]) -> Iterator[StoredRun]:
    """The run of each row of a :func:`select_runs` query."""

    def made(found: Any) -> StoredRun:
        row, hardware, software = found
        return StoredRun(row.id, _environment(hardware, software), row.started, row.ended, row.details, row.summary)

    return readable(session, "run", session.execute(query), made)


def select_runs() -> Select[Any]:
    """Query of runs with their environments, for :func:`runs_of`."""
    query = cast("Select[Any]", select(RunRow, HardwareRow, SoftwareRow))
    return query.join(HardwareRow, RunRow.hardware_id == HardwareRow.id).join(
        SoftwareRow, RunRow.software_id == SoftwareRow.id
    )


def _with_parts(query: Select[Any], row: type[TrialRow] | type[DecisionRow]) -> Select[Any]:
    return (
        query.join(ProblemRow, row.problem_id == ProblemRow.id)
        .join(CandidateRow, row.candidate_id == CandidateRow.id)
        .join(ImplementationRow, CandidateRow.implementation_id == ImplementationRow.id)
        .join(HardwareRow, row.hardware_id == HardwareRow.id)
        .join(SoftwareRow, row.software_id == SoftwareRow.id)
        .join(ProtocolRow, row.protocol_id == ProtocolRow.id)
    )


class _BuiltOnce:
    """Builds each problem, candidate, environment and protocol once for all rows of a query that refer to it."""

    def __init__(self) -> None:
        # by row: a session has one object for all mentions of a stored row, as long as something holds that object
        self._problem, self._candidate = cache(_problem), cache(_candidate)
        self._environment, self._protocol = cache(_environment), cache(_protocol)

    def of(self, parts: Parts) -> dict[str, Any]:
        """The identities by the name of their field in a trial or decision."""
        problem, candidate, implementation, hardware, software, protocol = parts
        return {
            "problem": self._problem(problem),
            "candidate": self._candidate(candidate, implementation),
            "environment": self._environment(hardware, software),
            "protocol": self._protocol(protocol),
        }


def _check_columns(told: Mapping[str, Any]) -> None:
    """Raises TypeError or InvalidRecordError for the columns of a trial that another type's value stands in."""
    finite_or_none(told["median_us"], "trial.median_us")
    if type(told["details"]) is not dict:
        plain_mapping(told["details"], "trial.details")
    for name in _TEXTS:
        if type(told.get(name, "")) is not str:
            raise TypeError(f"trial.{name} is a {type(told[name]).__name__}, expected text")
    if told.get("created", True) is None:
        raise TypeError("trial.created is no instant")


def _problem(row: ProblemRow) -> ProblemKey:
    return ProblemKey(row.op, row.op_version, row.dims, tuple(json.loads(row.static_key)))


def _candidate(row: CandidateRow, implementation: ImplementationRow) -> CandidateKey:
    return CandidateKey(implementation.name, implementation.fingerprint, row.config)


def _environment(hardware: HardwareRow, software: SoftwareRow) -> Environment:
    return Environment(hardware.identity, software.identity)


def _protocol(row: ProtocolRow) -> Protocol:
    return Protocol(row.regime, row.details)


def _fields(row: StoredRow, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _trial(row: TrialRow, identities: Mapping[str, Any]) -> Trial:
    return Trial(**identities, samples=tuple(row.samples), **_fields(row, TRIAL_FIELDS))


def _decision(row: DecisionRow, identities: Mapping[str, Any]) -> Decision:
    ratio = _interval(row.default_ratio, row.default_lo, row.default_hi)
    fields = _fields(row, DECISION_FIELDS) | {"ties": tuple(row.ties), "transfers": transfers_of(row.transfers)}
    return Decision(**identities, previous=row.previous_uid, default_ratio=ratio, **fields)


def _interval(value: float | None, low: float | None, high: float | None) -> Interval | None:
    return None if value is None or low is None or high is None else Interval(value, low, high)


def _final(row: FinalRow, candidate: CandidateRow | None, implementation: ImplementationRow | None) -> Final:
    key = None if candidate is None or implementation is None else _candidate(candidate, implementation)
    return Final(key, **_fields(row, FINAL_FIELDS))

"""Queries, one joined SELECT each, and the records made of their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from . import first_version
from .identities import CandidateKey, Environment, ProblemKey, Protocol
from .models import (
    CandidateRow,
    DecisionRow,
    FinalRow,
    HardwareRow,
    ImplementationRow,
    ProblemRow,
    ProtocolRow,
    RunRow,
    SoftwareRow,
    TrialRow,
    WinnerRow,
)
from .records import Decision, Final, Interval, Role, Run, Trial

SCHEMA_VERSION = "schema_version"
"""The name in a session's ``info`` under which the version of the database's schema stands."""

_PARTS = (ProblemRow, CandidateRow, ImplementationRow, HardwareRow, SoftwareRow, ProtocolRow)
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


def trials_of(session: Session, query: Select[Any]) -> Iterator[tuple[str, Trial]]:
    """(uid of the run, trial) of each row of a :func:`select_trials` query."""
    shared = _BuiltOnce()
    for row, *parts in session.execute(query):
        yield row.run_id, _trial(row, *shared.of(cast(Parts, parts)))


def numbered_trials_of(session: Session, query: Select[Any]) -> Iterator[tuple[int, Trial]]:
    """(row number, trial) of each row of a :func:`select_trials` query."""
    shared = _BuiltOnce()
    for row, *parts in session.execute(query):
        yield row.id, _trial(row, *shared.of(cast(Parts, parts)))


def decisions_of(session: Session, query: Select[Any]) -> Iterator[tuple[str, Decision]]:
    """(uid of the run, decision) of each row of a :func:`select_decisions` query."""
    shared = _BuiltOnce()
    first = session.info.get(SCHEMA_VERSION) == 1
    for row, *parts in session.execute(first_version.without_new_columns(query) if first else query):
        stored = first_version.completed(row) if first else row
        yield row.run_id, _decision(stored, *shared.of(cast(Parts, parts)))


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
    return [_final(*row) for row in session.execute(query)]


def runs_of(session: Session, query: Select[Any]) -> Iterator[Run]:
    """The run of each row of a :func:`select_runs` query."""
    for row, hardware, software in session.execute(query):
        environment = Environment(hardware.identity, software.identity)
        yield Run(row.id, environment, row.started, row.ended, row.details, row.summary)


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
        self._made: dict[tuple[str, int, int], Any] = {}

    def of(self, parts: Parts) -> tuple[ProblemKey, CandidateKey, Environment, Protocol]:
        problem, candidate, implementation, hardware, software, protocol = parts
        return (
            self._once(("problem", problem.id, 0), lambda: _problem(problem)),
            self._once(("candidate", candidate.id, 0), lambda: _candidate(candidate, implementation)),
            self._once(
                ("environment", hardware.id, software.id), lambda: Environment(hardware.identity, software.identity)
            ),
            self._once(("protocol", protocol.id, 0), lambda: Protocol(protocol.regime, protocol.details)),
        )

    def _once(self, key: tuple[str, int, int], make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _problem(row: ProblemRow) -> ProblemKey:
    return ProblemKey(row.op, row.op_version, row.dims, tuple(json.loads(row.static_key)))


def _candidate(row: CandidateRow, implementation: ImplementationRow) -> CandidateKey:
    return CandidateKey(implementation.name, implementation.fingerprint, row.config)


def _trial(
    row: TrialRow, problem: ProblemKey, candidate: CandidateKey, environment: Environment, protocol: Protocol
) -> Trial:
    return Trial(
        problem,
        candidate,
        environment,
        protocol,
        status=row.status,
        message=row.message,
        median_us=row.median_us,
        samples=tuple(row.samples),
        censored=row.censored,
        stop_reason=row.stop_reason,
        artifact_hash=row.artifact_hash,
        details=row.details,
        uid=row.uid,
        created=row.created,
    )


def _decision(
    row: DecisionRow, problem: ProblemKey, candidate: CandidateKey, environment: Environment, protocol: Protocol
) -> Decision:
    return Decision(
        problem,
        environment,
        protocol,
        candidate,
        median_us=row.median_us,
        floor_us=row.floor_us,
        ratio=row.ratio,
        lo=row.lo,
        hi=row.hi,
        aa=row.aa,
        verdict=row.verdict,
        baselines=row.baselines,
        trial_uid=row.trial_uid,
        previous=row.previous_uid,
        uid=row.uid,
        created=row.created,
        default_ratio=_interval(row.default_ratio, row.default_lo, row.default_hi),
        ties=tuple(row.ties),
    )


def _interval(value: float | None, low: float | None, high: float | None) -> Interval | None:
    return None if value is None or low is None or high is None else Interval(value, low, high)


def _final(row: FinalRow, candidate: CandidateRow | None, implementation: ImplementationRow | None) -> Final:
    key = None if candidate is None or implementation is None else _candidate(candidate, implementation)
    return Final(key, cast(Role, row.role), row.block, row.round, row.position, row.us)

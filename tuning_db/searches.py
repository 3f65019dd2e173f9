"""Searches: the trials of one problem under one environment and protocol, with figures to count and compare."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Boolean, ColumnElement, Select, Text, case, cast, func, select
from sqlalchemy.orm import Session

from .database.bad_rows import readable, skip
from .identities import CandidateKey, Environment, ProblemKey, Protocol
from .keys import finite_or_none
from .models import ProblemRow, TrialRow
from .referred import TOGETHER, Referred


class TrialFigures(NamedTuple):
    """The outcome of a trial. ``message`` is that of a failure, and empty of a trial that was right.

    ``resources`` is JSON, the entry of that name in the trial's details: what the compiler says that the kernel takes.
    """

    candidate: CandidateKey
    status: str
    censored: bool
    median_us: float | None
    message: str
    resources: str | None = None


class Search(NamedTuple):
    """Trials of one problem that may be compared, oldest first; ``newest`` is the row number of the last stored one."""

    problem: ProblemKey
    environment: Environment
    protocol: Protocol
    newest: int
    attempts: list[TrialFigures]


_PLACE = (TrialRow.problem_id, TrialRow.hardware_id, TrialRow.software_id, TrialRow.protocol_id)


def searches_of(session: Session, op: str | None) -> Iterator[Search]:
    """Every search, or those of one op, read as they are asked for."""
    referred = Referred(session)
    ordered = _rows(session, _query(op, _resources(session)), referred)
    for (problem, hardware, software, protocol), rows in groupby(ordered, itemgetter(0, 1, 2, 3)):
        found = list(rows)
        candidate = referred.candidates(row[5] for row in found)
        referred.hardware([hardware]), referred.software([software])

        def made(row: Any) -> TrialFigures:
            return _figures(TrialFigures(candidate[row[5]], *row[6:]))  # noqa: B023  called before the next group

        try:
            place = (
                referred.problems([problem])[problem],
                referred.environment(hardware, software),
                referred.protocols([protocol])[protocol],
            )
        except LookupError as fault:
            skip(session, "trial", fault)
            continue
        yield Search(*place, max(row[4] for row in found), list(readable(session, "trial", found, made)))


def _figures(told: TrialFigures) -> TrialFigures:
    """``told``. Raises TypeError or InvalidRecordError where another type's value stands in a column."""
    _, status, _, us, message, resources = told
    finite_or_none(us, "trial.median_us")
    if not (isinstance(status, str) and isinstance(message, str) and isinstance(resources or "", str)):
        raise TypeError(f"a trial has the status {status!r:.40}, expected text")
    return told


def _resources(session: Session) -> ColumnElement[str]:
    """The entry ``resources`` of details as JSON; None of details that are no JSON, which SQLite holds as well."""
    entry = cast(TrialRow.details["resources"], Text)
    if session.get_bind().dialect.name != "sqlite":
        return entry
    return case((func.json_valid(TrialRow.details, type_=Boolean), entry))


def _query(op: str | None, resources: ColumnElement[str]) -> Select[Any]:
    message = case((TrialRow.status == "ok", ""), else_=TrialRow.message)
    # an import keeps instants, but not the order of rows
    query = select(
        *_PLACE, TrialRow.id, TrialRow.candidate_id, TrialRow.status, TrialRow.censored, TrialRow.median_us, message,
        resources,
    ).order_by(*_PLACE, TrialRow.created, TrialRow.id)  # fmt: skip
    return query if op is None else query.where(TrialRow.problem_id.in_(select(ProblemRow.id).filter_by(op=op)))


def _rows(session: Session, query: Select[Any], referred: Referred) -> Iterator[Any]:
    for rows in session.connection().execute(query.execution_options(yield_per=TOGETHER)).partitions():
        referred.problems(row[0] for row in rows)  # one query for all of them
        yield from rows

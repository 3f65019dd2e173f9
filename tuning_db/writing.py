"""Writing: adds runs, trials, decisions and finals that are new, and swaps winners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import chain, count, repeat
from operator import attrgetter, itemgetter, methodcaller
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from .errors import InvalidRecordError
from .identity_rows import MEASURED_IDS, Identities
from .models import DECISION_FIELDS, FINAL_FIELDS, DecisionRow, FinalRow, RunRow, TrialRow, WinnerRow
from .records import Decision, Final, PlainTrial, StoredRun, Trial
from .rows import add_new, add_rows, insert_new, numbers_of

_OWN = PlainTrial._fields[PlainTrial._fields.index("uid") : -1]
"""The fields of a trial, but for ``created``, that its columns hold as they are."""

_final_fields = attrgetter(*FINAL_FIELDS)


def add_runs(session: Session, identities: Identities, runs: Iterable[StoredRun]) -> None:
    """Adds the runs that are not stored yet."""
    add_new(session, RunRow, [_run_values(run, identities) for run in runs])


def add_trials(session: Session, identities: Identities, trials: Sequence[PlainTrial]) -> int:
    """Adds the trials whose uid is not stored yet; returns how many these were."""
    if not trials:
        return 0
    given = dict(zip(PlainTrial._fields, zip(*trials, strict=True), strict=True))
    columns: dict[str, Iterable[Any]] = {name: given[name] for name in _OWN} | {"run_id": given["run"]}
    columns["created"] = _instants(session, given["created"])
    columns |= dict(zip(MEASURED_IDS, identities.measured_columns(trials), strict=True))
    # in the table's order, which is the statement's
    names = [column.name for column in TrialRow.__table__.columns if column.name in columns]
    return add_rows(session, TrialRow, names, zip(*(columns[name] for name in names), strict=True))


def add_decisions(
    session: Session, identities: Identities, decisions: Sequence[tuple[str, Decision]]
) -> dict[str, int]:
    """Adds decisions that are new, each beside the uid of its run; returns their row numbers by uid.

    :func:`add_finals` adds their finals.
    """
    values = [_decision_values(run, decision, identities) for run, decision in decisions]
    add_new(session, DecisionRow, values)
    return numbers_of(session, DecisionRow.uid, DecisionRow.id, [decision.uid for _, decision in decisions])


def add_finals(
    session: Session, identities: Identities, decided: Iterable[tuple[int, Decision, Sequence[Final]]]
) -> None:
    """Adds finals of decisions, each beside its row number, that have none."""
    rows = chain.from_iterable(
        zip(repeat(number), count(), identities.candidates(decision.problem.op, finals), *fields)
        for number, decision, finals in decided
        if (fields := [*zip(*map(_final_fields, finals), strict=True)])
    )
    add_rows(session, FinalRow, ("decision_id", "ordinal", "candidate_id", *FINAL_FIELDS), rows)


def swap_winner(session: Session, place: Mapping[str, Any], decision_id: int, previous: str | None) -> bool:
    """Makes ``decision_id`` the winner at ``place`` (the winner table's key) if ``previous`` still is or none is.

    Returns whether it did.
    """
    if previous is not None:
        expected = select(DecisionRow.id).where(DecisionRow.uid == previous).scalar_subquery()
        swap = update(WinnerRow).filter_by(**place).where(WinnerRow.decision_id == expected)
        if _took(session, swap.values(decision_id=decision_id).returning(WinnerRow.decision_id)):
            return True
    first = insert_new(session, WinnerRow).values(**place, decision_id=decision_id)
    return _took(session, first.returning(WinnerRow.decision_id))


def is_stored(session: Session, decision: Decision) -> bool:
    """True if the decision, known by its uid, is in the database."""
    return session.execute(select(DecisionRow.id).where(DecisionRow.uid == decision.uid)).first() is not None


def is_winner(session: Session, decision: Decision) -> bool:
    """True if a stored decision is the winner of its place."""
    query = select(WinnerRow.decision_id).join(DecisionRow, WinnerRow.decision_id == DecisionRow.id)
    return session.execute(query.where(DecisionRow.uid == decision.uid)).first() is not None


def place_of(references: Mapping[str, Any], regime: str) -> dict[str, Any]:
    """The winner table's key for a decision that refers to these rows, by column."""
    return {name: references[name] for name in ("problem_id", "hardware_id", "software_id")} | {"regime": regime}


def measured(record: Trial | Decision, identities: Identities) -> dict[str, int]:
    """The row numbers of the identities that a trial or decision refers to, by column."""
    return dict(zip(MEASURED_IDS, identities.measured(record), strict=True))


def require_run(session: Session, run: str) -> RunRow:
    """The row of a run; raises InvalidRecordError when there is none."""
    row = session.get(RunRow, run)
    if row is None:
        raise InvalidRecordError(f"there is no run {run!r} in this database", hint="start one with start_run()")
    return row


def _took(session: Session, statement: Any) -> bool:
    """True if a statement with RETURNING touched a row (drivers do not agree on rowcount)."""
    # the Session must not try to apply it to objects it holds: it holds none
    return session.execute(statement, execution_options={"synchronize_session": False}).first() is not None


def _run_values(run: StoredRun, identities: Identities) -> dict[str, Any]:
    values = {"id": run.uid, **identities.environment(run.environment)}
    return values | {name: getattr(run, name) for name in ("started", "ended", "details", "summary")}


def _decision_values(run: str, decision: Decision, identities: Identities) -> dict[str, Any]:
    ratio = decision.default_ratio
    value, low, high = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return {
        "run_id": run,
        "previous_uid": decision.previous,
        "ties": list(decision.ties),
        "transfers": {name: asdict(one) for name, one in decision.transfers.items()},
        "default_ratio": value,
        "default_lo": low,
        "default_hi": high,
        **measured(decision, identities),
        **{name: getattr(decision, name) for name in DECISION_FIELDS},
    }


def _instants(session: Session, instants: Iterable[datetime]) -> Iterable[Any]:
    """Instants in UTC, as the driver takes them."""
    if session.get_bind().dialect.name == "sqlite":  # the text that SQLAlchemy's type makes, in a tenth of its time
        return map(itemgetter(slice(26)), map(methodcaller("isoformat", " ", "microseconds"), instants))
    return instants

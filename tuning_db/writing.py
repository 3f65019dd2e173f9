"""Writing: adds runs, trials, decisions and finals that are new, and swaps winners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from .errors import InvalidRecordError
from .identity_rows import Identities, add_new, insert_new
from .models import DECISION_FIELDS, FINAL_FIELDS, TRIAL_FIELDS, DecisionRow, FinalRow, RunRow, TrialRow, WinnerRow
from .records import Decision, Final, Run, Trial


def add_runs(session: Session, identities: Identities, runs: Iterable[Run]) -> None:
    """Adds the runs that are not stored yet."""
    add_new(session, RunRow, [_run_values(run, identities) for run in runs])


def add_trials(session: Session, identities: Identities, trials: Iterable[tuple[str, Trial]]) -> None:
    """Adds trials, each beside the uid of its run, whose uid is not stored yet."""
    add_new(session, TrialRow, [_trial_values(run, trial, identities) for run, trial in trials])


def add_decision(
    session: Session, identities: Identities, run: str, decision: Decision, finals: Sequence[Final]
) -> int:
    """Adds a decision with its finals and returns its row number."""
    values = _decision_values(run, decision, identities)
    number = session.execute(insert(DecisionRow).returning(DecisionRow.id), [values]).scalar_one()
    add_finals(session, identities, number, decision, finals)
    return number


def add_finals(
    session: Session, identities: Identities, number: int, decision: Decision, finals: Sequence[Final]
) -> None:
    """Adds the finals of the decision in row ``number``, which has none."""
    op = decision.problem.op
    if rows := [_final_values(number, place, op, final, identities) for place, final in enumerate(finals)]:
        session.connection().execute(insert(FinalRow), rows)


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


def _run_values(run: Run, identities: Identities) -> dict[str, Any]:
    values = {"id": run.uid, **identities.environment(run.environment)}
    return values | {name: getattr(run, name) for name in ("started", "ended", "details", "summary")}


def _trial_values(run: str, trial: Trial, identities: Identities) -> dict[str, Any]:
    values = {"run_id": run, "samples": list(trial.samples), **identities.measured(trial)}
    return values | {name: getattr(trial, name) for name in TRIAL_FIELDS}


def _decision_values(run: str, decision: Decision, identities: Identities) -> dict[str, Any]:
    ratio = decision.default_ratio
    value, low, high = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return {
        "run_id": run,
        "previous_uid": decision.previous,
        "ties": list(decision.ties),
        "default_ratio": value,
        "default_lo": low,
        "default_hi": high,
        **identities.measured(decision),
        **{name: getattr(decision, name) for name in DECISION_FIELDS},
    }


def _final_values(decision_id: int, ordinal: int, op: str, final: Final, identities: Identities) -> dict[str, Any]:
    candidate = None if final.candidate is None else identities.candidate(op, final.candidate)
    values = {"decision_id": decision_id, "ordinal": ordinal, "candidate_id": candidate}
    return values | {name: getattr(final, name) for name in FINAL_FIELDS}

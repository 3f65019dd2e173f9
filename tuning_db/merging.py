"""Export and import: moves results between a database and the exchange format, each in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Select, delete, func, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session

from . import reading, writing
from .errors import ExchangeError
from .exchange import DecisionLine, HeaderLine, Line, Parsed, RunLine, TrialLine, WinnerLine
from .identity_rows import Identities, chunks
from .models import DecisionRow, FinalRow, HardwareRow, ProblemRow, ProtocolRow, RunRow, TrialRow, WinnerRow
from .records import Decision, Final
from .snapshot import Row, runners


def exported(session: Session, op: str | None, hardware_keys: Collection[str] | None) -> Iterator[Line]:
    """Every line of an export: header, runs, trials, decisions, winners, of one op or one hardware if asked."""
    yield HeaderLine()

    def chosen(query: Select[Any], row: type[TrialRow] | type[DecisionRow]) -> Select[Any]:
        return _chosen(query, op, hardware_keys).order_by(row.id).execution_options(yield_per=1000)

    yield from _runs(session, op, hardware_keys)
    for row, trial in reading.trials_of(session, chosen(reading.select_trials(), TrialRow)):
        yield TrialLine(run=row.run_id, trial=trial)
    for run, decision in reading.decisions_of(session, chosen(reading.select_decisions(), DecisionRow)):
        yield DecisionLine(run=run, decision=decision, finals=tuple(reading.finals_of(session, decision.uid)))
    for _, decision in reading.decisions_of(session, chosen(reading.select_winners(), DecisionRow)):
        yield WinnerLine(decision=decision.uid)


def exported_winners(session: Session, op: str | None, hardware_keys: Collection[str] | None) -> Iterator[Line]:
    """Every line of an export of winners, sorted by problem: header, their runs, then each decision and that it is a
    winner.

    Trials are left out, and of the finals there is one time for the best candidate of each implementation that the
    winner was measured against, so that the file stays small for users who only dispatch.
    """
    query = _chosen(reading.select_winners(), op, hardware_keys)
    found = sorted(reading.decisions_of(session, query), key=lambda pair: _place(pair[1]))
    yield HeaderLine()
    for chunk in chunks({uid for uid, _ in found}):
        for run in reading.runs_of(session, reading.select_runs().where(RunRow.id.in_(chunk)).order_by(RunRow.id)):
            yield RunLine(run=run)
    for uid, decision in found:
        yield DecisionLine(run=uid, decision=decision, finals=tuple(_summary(session, decision)))
        yield WinnerLine(decision=decision.uid)


def _summary(session: Session, decision: Decision) -> Iterator[Final]:
    """A time for the best candidate of each implementation that a winner was measured against."""

    def ask(query: str, values: Mapping[str, Any]) -> list[Row]:
        return [tuple(row) for row in session.execute(text(query), dict(values))]

    found = runners(ask, decision.uid)
    for place, name in enumerate(sorted(found.keys() & decision.baselines.keys())):
        yield Final(found[name], "candidate", 0, 0, place, decision.median_us * decision.baselines[name])


def _place(decision: Decision) -> tuple[object, ...]:
    """Sort key of a decision: op, dimensions (numbers by size, before text), environment, regime, uid."""
    dims = [
        (0, value, "") if isinstance(value, int | float) else (1, 0, value)
        for _, value in sorted(decision.problem.dims.items())
    ]
    return decision.problem.op, dims, decision.environment.key, decision.protocol.regime, decision.uid


def merge(session: Session, parsed: Parsed) -> int:
    """Adds the records that are new; returns their number. Raises ExchangeError for a reference to a missing record."""
    taken = {
        *_present(session, RunRow.id, (content.run.uid for content in parsed.runs)),
        *_present(session, TrialRow.uid, (content.trial.uid for _, content in parsed.trials)),
        *_present(session, DecisionRow.uid, (content.decision.uid for _, content in parsed.decisions)),
    }
    runs = {content.run.uid: content.run for content in parsed.runs if content.run.uid not in taken}
    _check_runs(session, parsed, runs.keys())
    trials = {content.trial.uid: content for _, content in parsed.trials if content.trial.uid not in taken}
    decisions = {content.decision.uid: content for _, content in parsed.decisions if content.decision.uid not in taken}
    bare = _with_fewer_finals(session, {line.decision.uid: len(line.finals) for _, line in parsed.decisions})
    late = {content.decision.uid: content for _, content in parsed.decisions if content.decision.uid in bare}
    identities = Identities(
        session,
        [content.trial for content in trials.values()],
        [(content.decision, content.finals) for content in (*decisions.values(), *late.values())],
        [run.environment for run in runs.values()],
    )
    writing.add_runs(session, identities, runs.values())
    writing.add_trials(session, identities, ((content.run, content.trial) for content in trials.values()))
    for content in decisions.values():
        writing.add_decision(session, identities, content.run, content.decision, content.finals)
    for uid, content in late.items():
        session.execute(delete(FinalRow).where(FinalRow.decision_id == bare[uid]))
        writing.add_finals(session, identities, bare[uid], content.decision, content.finals)
    crowned = sum(_crown(session, number, content.decision) for number, content in parsed.winners)
    return len(runs) + len(trials) + len(decisions) + len(late) + crowned


def _runs(session: Session, op: str | None, hardware_keys: Collection[str] | None) -> Iterator[RunLine]:
    query = _chosen(reading.select_runs().order_by(RunRow.started, RunRow.id), None, hardware_keys)
    if op is not None:
        problems = select(ProblemRow.id).where(ProblemRow.op == op)
        tried, decided = (select(row.run_id).where(row.problem_id.in_(problems)) for row in (TrialRow, DecisionRow))
        query = query.where(RunRow.id.in_(tried.union(decided)))
    for run in reading.runs_of(session, query):
        yield RunLine(run=run)


def _chosen(query: Select[Any], op: str | None, hardware_keys: Collection[str] | None) -> Select[Any]:
    if op is not None:
        query = query.where(ProblemRow.op == op)
    if hardware_keys is not None:
        query = query.where(HardwareRow.key.in_(sorted(hardware_keys)))
    return query


def _present(session: Session, column: InstrumentedAttribute[str], uids: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for chunk in chunks(set(uids)):
        found |= set(session.execute(select(column).where(column.in_(chunk))).scalars())
    return found


def _with_fewer_finals(session: Session, given: Mapping[str, int]) -> dict[str, int]:
    """uid -> row number of the stored decisions that have fewer finals than ``given``, as imported winners have."""
    found: dict[str, int] = {}
    held = select(func.count()).where(FinalRow.decision_id == DecisionRow.id).scalar_subquery()
    for chunk in chunks(set(given)):
        rows = session.execute(select(DecisionRow.uid, DecisionRow.id, held).where(DecisionRow.uid.in_(chunk)))
        found |= {uid: number for uid, number, count in rows if count < given[uid]}
    return found


def _check_runs(session: Session, parsed: Parsed, added: Iterable[str]) -> None:
    lines: list[tuple[int, TrialLine | DecisionLine]] = [*parsed.trials, *parsed.decisions]
    named = [(number, content.run) for number, content in lines]
    known = {*added, *_present(session, RunRow.id, (run for _, run in named))}
    for number, run in named:
        if run not in known:
            raise ExchangeError(
                f"line {number}: the run {run!r} is neither in the file nor in the database",
                hint="nothing was imported; export again, whole",
            )


def _crown(session: Session, number: int, uid: str) -> bool:
    """Makes a decision the winner unless a later one is; returns whether it did.

    The later ``created`` counts as later, then the greater uid, so that imports in any order end in the same database.
    """
    new = session.execute(select(DecisionRow).where(DecisionRow.uid == uid)).scalar_one_or_none()
    if new is None:
        raise ExchangeError(
            f"line {number}: the decision {uid!r} is neither in the file nor in the database",
            hint="nothing was imported; export again, whole",
        )
    protocol = session.get_one(ProtocolRow, new.protocol_id)
    place = writing.place_of(vars(new), protocol.regime)
    winner = select(WinnerRow.decision_id).filter_by(**place).scalar_subquery()
    current = session.execute(select(DecisionRow).where(DecisionRow.id == winner)).scalar_one_or_none()
    if current is not None and (current.created, current.uid) >= (new.created, new.uid):
        return False
    return writing.swap_winner(session, place, new.id, None if current is None else current.uid)

"""Export: the lines of the exchange format that a database's records make, as they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from sqlalchemy import Select, select, text
from sqlalchemy.orm import Session

from .. import reading
from ..database.answering import AnsweredRow
from ..models import DecisionRow, HardwareRow, ProblemRow, RunRow, TrialRow
from ..records import Decision, Final
from ..referred import Referred
from ..rows import chunks
from ..snapshot import LATEST_RUNS, runners
from .format import DecisionLine, HeaderLine, RunLine, WinnerLine, line
from .trial_lines import finals_texts, text_of, trial_lines

_DECISIONS_TOGETHER = 50
"""Decisions whose finals, hundreds of each, are read together."""


def exported(session: Session, op: str | None, hardware_keys: Collection[str] | None) -> Iterator[str]:
    """Every line of an export: header, runs, trials, decisions, winners, of one op or one hardware if asked.

    Only a thousand rows are held in memory, and the identities that they refer to.
    """
    texts = Referred(session, text_of)
    yield line(HeaderLine())
    yield from map(line, _runs(session, op, hardware_keys))
    numbers = _chosen(_referring(select(TrialRow.id), TrialRow), op, hardware_keys)
    yield from trial_lines(session, numbers.order_by(TrialRow.id), texts)

    def decisions(query: Select[Any]) -> Iterator[tuple[str, Decision]]:
        ordered = _chosen(query, op, hardware_keys).order_by(DecisionRow.id)
        return reading.decisions_of(session, ordered.execution_options(yield_per=1000))

    yield from _with_finals(session, decisions(reading.select_decisions()), texts)
    for _, decision in decisions(reading.select_winners()):
        yield line(WinnerLine(decision=decision.uid))


def _with_finals(session: Session, decided: Iterator[tuple[str, Decision]], texts: Referred) -> Iterator[str]:
    """A line for each decision, with all its finals."""
    while part := list(islice(decided, _DECISIONS_TOGETHER)):
        finals = finals_texts(session, [decision.uid for _, decision in part], texts)
        for run, decision in part:
            before, _, behind = line(DecisionLine(run=run, decision=decision)).rpartition('"finals":[]')
            yield f'{before}"finals":{finals.get(decision.uid, "[]")}{behind}'


def exported_set(
    session: Session, op: str | None, hardware_keys: Collection[str] | None, *, brief: bool = False
) -> Iterator[str]:
    """Every line that dispatch by the winners alone, and a comparison of them, needs; the same for equal winners.

    Header, runs, decisions with all their finals, winners, sorted by run and by problem. The runs are those of the
    winners, and the latest of each hardware, whose rules for defaults dispatch reads. Trials are left out. ``brief``:
    finals as in ``exported_winners``, which is all that dispatch needs.
    """
    winners = reading.decisions_of(session, _chosen(reading.select_winners(), op, hardware_keys))
    found = sorted(winners, key=lambda pair: _place(pair[1]))
    hardware = {decision.environment.hardware_key for _, decision in found}
    wanted = {run for run, _ in found} | set(_latest_runs(session, hardware))
    yield line(HeaderLine())
    for chunk in chunks(wanted):
        for run in reading.runs_of(session, reading.select_runs().where(RunRow.id.in_(chunk)).order_by(RunRow.id)):
            yield line(RunLine(run=run))
    if brief:
        for run_uid, decision in found:
            yield line(DecisionLine(run=run_uid, decision=decision, finals=tuple(_summary(session, decision))))
    else:
        yield from _with_finals(session, iter(found), Referred(session, text_of))
    for _, decision in found:
        yield line(WinnerLine(decision=decision.uid))


def _latest_runs(session: Session, hardware_keys: Collection[str]) -> Iterator[str]:
    for key in sorted(hardware_keys):
        ended = reading.select_runs().where(HardwareRow.key == key, RunRow.ended.is_not(None))
        latest = ended.order_by(RunRow.ended.desc(), RunRow.id).limit(LATEST_RUNS)
        yield from (run.uid for run in reading.runs_of(session, latest))


def _referring(query: Select[Any], row: type[TrialRow]) -> Select[Any]:
    """``query`` with the tables that its conditions may name."""
    return query.join(ProblemRow, row.problem_id == ProblemRow.id).join(HardwareRow, row.hardware_id == HardwareRow.id)


def exported_winners(session: Session, op: str | None, hardware_keys: Collection[str] | None) -> Iterator[str]:
    """Every line of an export of winners, sorted by problem: header, their runs, then each decision and that it is a
    winner.

    Trials are left out, and of the finals there is one time for the best candidate of each implementation that the
    winner was measured against, so that the file stays small for users who only dispatch.
    """
    query = _chosen(reading.select_winners(), op, hardware_keys)
    found = sorted(reading.decisions_of(session, query), key=lambda pair: _place(pair[1]))
    yield line(HeaderLine())
    for chunk in chunks({uid for uid, _ in found}):
        for run in reading.runs_of(session, reading.select_runs().where(RunRow.id.in_(chunk)).order_by(RunRow.id)):
            yield line(RunLine(run=run))
    for uid, decision in found:
        yield line(DecisionLine(run=uid, decision=decision, finals=tuple(_summary(session, decision))))
        yield line(WinnerLine(decision=decision.uid))


def _summary(session: Session, decision: Decision) -> Iterator[Final]:
    """A time for the best candidate of each implementation that a winner was measured against."""

    def ask(query: str, values: Mapping[str, Any]) -> list[AnsweredRow]:
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

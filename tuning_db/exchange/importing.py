"""Import: adds the records of an exchange file to a database as the lines are read, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from sqlalchemy import delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from .. import writing
from ..errors import ExchangeError
from ..identity_rows import Identities, Known, chunks
from ..models import DecisionRow, FinalRow, ProtocolRow, RunRow, TrialRow, WinnerRow
from .format import DecisionLine, Line, RunLine, TrialLine, WinnerLine

_Measured = TypeVar("_Measured", TrialLine, DecisionLine)

_TOGETHER = 4096
"""Lines that are added together: what an import holds in memory, however long the file."""


def add_lines(session: Session, lines: Iterable[tuple[int, Line]]) -> int:
    """Adds the records that are new; returns their number. Raises ExchangeError for a reference to a missing record."""
    adding = _Adding(session)
    winners: list[tuple[int, WinnerLine]] = []
    for number, content in lines:
        if isinstance(content, WinnerLine):
            winners.append((number, content))
        elif isinstance(content, RunLine | TrialLine | DecisionLine):
            adding.add(number, content)
    adding.finish()
    crowned = sum(_crown(session, number, content.decision) for number, content in winners)
    return adding.count + crowned


class _Adding:
    """Adds runs, trials and decisions; a trial or decision that stands before its run waits for the end of the file.

    ``count`` is the number of new records.
    """

    def __init__(self, session: Session) -> None:
        self.count = 0
        self._session = session
        self._runs: dict[str, RunLine] = {}
        self._trials: dict[str, tuple[int, TrialLine]] = {}
        self._decisions: dict[str, tuple[int, DecisionLine]] = {}
        self._early: list[tuple[int, TrialLine | DecisionLine]] = []
        self._there: set[str] = set()
        self._known: Known = {}

    def add(self, number: int, content: RunLine | TrialLine | DecisionLine) -> None:
        """Takes in one line."""
        match content:
            case RunLine(run=run):
                self._runs[run.uid] = content
            case TrialLine(trial=trial):
                self._trials[trial.uid] = number, content
            case DecisionLine(decision=decision):
                self._decisions[decision.uid] = number, content
        # a decision counts as the lines that its finals would be
        if len(self._runs) + len(self._trials) + 64 * len(self._decisions) >= _TOGETHER:
            self._flush(last=False)

    def finish(self) -> None:
        """Adds what is left. Raises ExchangeError for a trial or decision whose run is nowhere."""
        self._flush(last=False)
        for number, content in self._early:
            self.add(number, content)
        self._flush(last=True)

    def _flush(self, *, last: bool) -> None:
        trials = self._belonging(self._trials, last)
        decisions = self._belonging(self._decisions, last)
        taken = {
            *_present(self._session, RunRow.id, self._runs),
            *_present(self._session, TrialRow.uid, trials),
            *_present(self._session, DecisionRow.uid, decisions),
        }
        runs = [content.run for uid, content in self._runs.items() if uid not in taken]
        new_trials = [content for uid, content in trials.items() if uid not in taken]
        new_decisions = [content for uid, content in decisions.items() if uid not in taken]
        bare = _with_fewer_finals(self._session, {uid: len(content.finals) for uid, content in decisions.items()})
        late = {uid: decisions[uid] for uid in bare}
        identities = Identities(
            self._session,
            [content.trial for content in new_trials],
            [(content.decision, content.finals) for content in (*new_decisions, *late.values())],
            [run.environment for run in runs],
            self._known,
        )
        self._known |= identities.found
        writing.add_runs(self._session, identities, runs)
        writing.add_trials(self._session, identities, ((content.run, content.trial) for content in new_trials))
        for content in new_decisions:
            writing.add_decision(self._session, identities, content.run, content.decision, content.finals)
        for uid, content in late.items():
            self._session.execute(delete(FinalRow).where(FinalRow.decision_id == bare[uid]))
            writing.add_finals(self._session, identities, bare[uid], content.decision, content.finals)
        self.count += len(runs) + len(new_trials) + len(new_decisions) + len(late)
        self._runs, self._trials, self._decisions = {}, {}, {}

    def _belonging(self, held: Mapping[str, tuple[int, _Measured]], last: bool) -> dict[str, _Measured]:
        """The lines whose run is there. Others wait, but those of the ``last`` flush are refused."""
        named = {content.run for _, content in held.values()} - self._there
        self._there |= _present(self._session, RunRow.id, named) | (named & self._runs.keys())
        for number, content in held.values():
            if content.run not in self._there:
                if last:
                    raise ExchangeError(
                        f"line {number}: the run {content.run!r} is neither in the file nor in the database",
                        hint="nothing was imported; export again, whole",
                    )
                self._early.append((number, content))
        return {uid: content for uid, (_, content) in held.items() if content.run in self._there}


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

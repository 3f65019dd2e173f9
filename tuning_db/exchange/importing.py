"""Import: adds the records of an exchange file to a database as the lines are read, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session

from .. import writing
from ..errors import ExchangeError
from ..identity_rows import Identities, chunks, numbers_of
from ..models import DecisionRow, FinalRow, RunRow
from ..records import PlainTrial
from .format import DecisionLine, HeaderLine, Line, RunLine, TrialLine, WinnerLine

_Measured = TypeVar("_Measured", PlainTrial, DecisionLine)

_TOGETHER = 4096
"""Lines that are added together: what an import holds in memory, however long the file."""
_CACHE_KIB = 65_536
"""SQLite's cache for an import: uids are random, and the pages of their index come back again and again."""


def add_lines(session: Session, lines: Iterable[tuple[int, Line]]) -> int:
    """Adds the records that are new; returns their number. Raises ExchangeError for a reference to a missing record."""
    if session.get_bind().dialect.name == "sqlite":
        session.connection().exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
    adding = _Adding(session)
    winners: dict[str, int] = {}
    for number, content in lines:
        if isinstance(content, PlainTrial):  # nearly all are
            adding.add_trial(number, content)
        elif isinstance(content, WinnerLine):
            winners[content.decision] = number
        elif isinstance(content, TrialLine):
            adding.add_trial(number, PlainTrial.of(content.run, content.trial))
        elif not isinstance(content, HeaderLine):
            adding.add(number, content)
    adding.finish()
    return adding.count + _crown(session, winners)


class _Adding:
    """Adds runs, trials and decisions; a trial or decision that stands before its run waits for the end of the file.

    ``count`` is the number of new records.
    """

    def __init__(self, session: Session) -> None:
        self.count = 0
        self._session = session
        self._runs: dict[str, RunLine] = {}
        self._trials: list[tuple[int, PlainTrial]] = []
        self._decisions: list[tuple[int, DecisionLine]] = []
        self._early: list[tuple[int, PlainTrial | DecisionLine]] = []
        self._there: set[str] = set()
        self._identities = Identities(session, [])

    def add_trial(self, number: int, trial: PlainTrial, *, last: bool = False) -> None:
        """Takes in one trial; ``last``: all runs of the file are known."""
        self._trials.append((number, trial))
        if len(self._trials) >= _TOGETHER:
            self._flush(last=last)

    def add(self, number: int, content: RunLine | DecisionLine, *, last: bool = False) -> None:
        """Takes in a run or a decision, which counts as the lines that its finals would be."""
        if isinstance(content, RunLine):
            self._runs[content.run.uid] = content
        else:
            self._decisions.append((number, content))
        if len(self._runs) + 64 * len(self._decisions) >= _TOGETHER:
            self._flush(last=last)

    def finish(self) -> None:
        """Adds what is left. Raises ExchangeError for a trial or decision whose run is nowhere."""
        self._flush(last=False)
        early, self._early = self._early, []
        for number, content in early:
            if isinstance(content, PlainTrial):
                self.add_trial(number, content, last=True)
            else:
                self.add(number, content, last=True)
        self._flush(last=True)

    def _flush(self, *, last: bool) -> None:
        trials = self._belonging(self._trials, last)
        decisions = {content.decision.uid: content for content in self._belonging(self._decisions, last)}
        stored = {
            *_present(self._session, RunRow.id, self._runs),
            *_present(self._session, DecisionRow.uid, decisions),
        }
        runs = [content.run for uid, content in self._runs.items() if uid not in stored]
        bare = _with_fewer_finals(self._session, {uid: len(content.finals) for uid, content in decisions.items()})
        taken = {uid: content for uid, content in decisions.items() if uid in bare or uid not in stored}
        identities = self._identities
        identities.add(
            trials,
            [(content.decision, content.finals) for content in taken.values()],
            [run.environment for run in runs],
        )
        writing.add_runs(self._session, identities, runs)
        self.count += writing.add_trials(self._session, identities, trials) + len(runs) + len(taken)
        self._session.execute(delete(FinalRow).where(FinalRow.decision_id.in_(bare.values())))
        new = [(content.run, content.decision) for uid, content in taken.items() if uid not in bare]
        rows = bare | writing.add_decisions(self._session, identities, new)
        finals = ((rows[uid], content.decision, content.finals) for uid, content in taken.items())
        writing.add_finals(self._session, identities, finals)
        self._runs, self._trials, self._decisions = {}, [], []

    def _belonging(self, held: Sequence[tuple[int, _Measured]], last: bool) -> list[_Measured]:
        """The lines whose run is there. Others wait, but those of the ``last`` flush are refused."""
        named = {content.run for _, content in held} - self._there
        self._there |= _present(self._session, RunRow.id, named) | (named & self._runs.keys())
        if last and (missing := next((line for line in held if line[1].run not in self._there), None)):
            raise ExchangeError(
                f"line {missing[0]}: the run {missing[1].run!r} is neither in the file nor in the database",
                hint="nothing was imported; export again, whole",
            )
        self._early += [line for line in held if line[1].run not in self._there]
        return [content for _, content in held if content.run in self._there]


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


_CROWN = text(
    "INSERT INTO winner (problem_id, hardware_id, software_id, regime, decision_id)"
    " SELECT new.problem_id, new.hardware_id, new.software_id, protocol.regime, new.id"
    " FROM decision AS new JOIN protocol ON protocol.id = new.protocol_id WHERE new.uid = :uid"
    " ON CONFLICT (problem_id, hardware_id, software_id, regime) DO UPDATE SET decision_id = excluded.decision_id"
    " WHERE EXISTS (SELECT 1 FROM decision AS one, decision AS other WHERE one.id = excluded.decision_id"
    " AND other.id = winner.decision_id AND (one.created, one.uid) > (other.created, other.uid))"
)


def _crown(session: Session, lines: Mapping[str, int]) -> int:
    """Makes each decision, by uid with the number of its line, the winner unless a later one is; returns how many it
    made so.

    The later ``created`` counts as later, then the greater uid, so that imports in any order end in the same database.
    """
    stored = numbers_of(session, DecisionRow.uid, DecisionRow.id, lines)
    for uid, number in lines.items():
        if uid not in stored:
            raise ExchangeError(
                f"line {number}: the decision {uid!r} is neither in the file nor in the database",
                hint="nothing was imported; export again, whole",
            )
    # the connection's execute: the session's would take a statement for each
    return session.connection().execute(_CROWN, [{"uid": uid} for uid in lines]).rowcount if lines else 0

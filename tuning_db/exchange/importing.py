"""Import: adds the records of an exchange file to a database as the lines are read, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session

from .. import writing
from ..errors import ExchangeError
from ..identity_rows import Identities
from ..models import DecisionRow, FinalRow, RunRow
from ..records import PlainTrial
from ..rows import chunks, numbers_of
from .format import DecisionLine, ExchangeLine
from .parts import Part, ahead, parts

_CACHE_KIB = 65_536
"""SQLite's cache for an import: uids are random, and the pages of their index come back again and again."""


def add_lines(session: Session, lines: Iterable[tuple[int, ExchangeLine]]) -> int:
    """Adds the records that are new; returns their number. Raises ExchangeError for a reference to a missing record.

    ``lines`` are taken in another thread: to insert what was read and to read what follows takes about as long.
    """
    if session.get_bind().dialect.name == "sqlite":
        session.connection().exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
    adding = _Adding(session)
    with closing(ahead(parts(lines))) as found:
        for part in found:
            adding.add(part)
    return adding.finish()


class _Adding:
    """Adds parts; a trial or decision that stands before its run waits for the end of the file."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._early: list[Part] = []
        self._there: set[str] = set()
        self._winners: dict[str, int] = {}
        self._identities = Identities(session, [])

    def finish(self) -> int:
        """Adds the remaining parts; returns the number of new records.

        Raises ExchangeError for a trial or decision whose run is nowhere, and for a winner without a decision.
        """
        early, self._early = self._early, []
        for part in early:
            self.add(part, last=True)
        return self._count + _crown(self._session, self._winners)

    def add(self, part: Part, *, last: bool = False) -> None:
        """Adds the part's records that are new; ``last``: all runs of the file are known."""
        self._winners |= part.winners
        part = self._belonging(part, last)
        decisions = {content.decision.uid: content for _, content in part.decisions}
        stored = {
            *_present(self._session, RunRow.id, part.runs),
            *_present(self._session, DecisionRow.uid, decisions),
        }
        runs = [content.run for uid, content in part.runs.items() if uid not in stored]
        bare = _with_fewer_finals(self._session, {uid: len(content.finals) for uid, content in decisions.items()})
        taken = {uid: content for uid, content in decisions.items() if uid in bare or uid not in stored}
        identities = self._identities
        identities.add(
            part.trials,
            [(content.decision, content.finals) for content in taken.values()],
            [run.environment for run in runs],
        )
        writing.add_runs(self._session, identities, runs)
        self._count += writing.add_trials(self._session, identities, part.trials) + len(runs) + len(taken)
        if bare:  # a server asks for the right to delete even where no row is meant
            self._session.execute(delete(FinalRow).where(FinalRow.decision_id.in_(bare.values())))
        new = [(content.run, content.decision) for uid, content in taken.items() if uid not in bare]
        rows = bare | writing.add_decisions(self._session, identities, new)
        finals = ((rows[uid], content.decision, content.finals) for uid, content in taken.items())
        writing.add_finals(self._session, identities, finals)

    def _belonging(self, part: Part, last: bool) -> Part:
        """The lines of the part whose run is there. Other lines wait, but those of the ``last`` parts are refused."""
        named = {trial.run for trial in part.trials} | {content.run for _, content in part.decisions}
        named -= self._there
        self._there |= _present(self._session, RunRow.id, named) | (named & part.runs.keys())
        if named <= self._there:
            return part
        there, early = Part(runs=part.runs), Part()
        measured: list[tuple[int, PlainTrial | DecisionLine]] = [*zip(part.trial_lines, part.trials, strict=True)]
        measured += part.decisions
        for number, content in measured:
            (there if content.run in self._there else early).add(number, content)
            if last and content.run not in self._there:
                raise ExchangeError(
                    f"line {number}: the run {content.run!r} is neither in the file nor in the database",
                    hint="nothing was imported; export again, whole",
                )
        self._early.append(early)
        return there


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
    """Makes each decision the winner, unless a later one is; returns how many it made so.

    ``lines``: the uids of the decisions, each with the number of its line. The later ``created`` counts as later, then
    the greater uid, so that imports in any order end in the same database.
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

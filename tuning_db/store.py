"""The store: writes and reads runs, trials, decisions and winners. Every write is one short transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sqlalchemy import update

from . import releases, tried, writing
from .database.engine import SILENCE_S, Opened, open_database, upgrade_database
from .database.location import locate
from .errors import ExchangeError, InvalidRecordError
from .identities import Environment
from .identity_rows import Identities, KnownIds
from .keys import plain_mapping
from .models import RunRow
from .queries import Queries
from .queue import fencing
from .queue.entries import Fence
from .records import Decision, Final, PlainTrial, StoredRun, Trial, new_uid, now
from .releases import Release

if TYPE_CHECKING:
    from .exchange import ExchangeLine

_SILENCE_IN_JOB_S = 60.0
"""Seconds without a byte of a server's answer after which a job's store is lost: no question of a job takes long."""


class Store(Queries):
    """An open tuning database. Threads may share it; after a fork the child gets connections of its own.

    Every method raises a TuningDBError when the database cannot be read or written.
    """

    def __init__(self, opened: Opened, fence: Fence | None = None) -> None:
        super().__init__(opened)
        self._known: KnownIds = {}
        self._fence = fence

    @classmethod
    def open(
        cls,
        url: str | Path | None = None,
        *,
        create: bool = True,
        migrate: bool = True,
        fence: Fence | None = None,
    ) -> Store:
        """Opens the database at ``url``: a path or SQLAlchemy URL, else ``KERNEL_REGISTRY_DB``, else the default file.

        With ``create`` a missing database is made, else it is a MissingDatabaseError. With ``migrate`` an older schema
        is brought up to date, else it is read unchanged. A file that cannot be written opens for reading. With a
        ``fence`` decisions are published only while its lease holds, and a server that is silent for a minute is lost.
        """
        silence_s = SILENCE_S if fence is None else _SILENCE_IN_JOB_S
        return cls(open_database(locate(url), create=create, upgrade=migrate, silence_s=silence_s), fence)

    @staticmethod
    def upgrade(url: str | Path | None = None) -> tuple[int, int]:
        """Brings the schema of the database at ``url`` up to date; returns its versions before and now.

        One transaction: a fault leaves the database unchanged. Raises ReadOnlyDatabaseError where an older database
        cannot be written.
        """
        return upgrade_database(locate(url))

    @property
    def url(self) -> str:
        """The database's URL, with passwords hidden."""
        return self._opened.location.shown

    @property
    def on_server(self) -> bool:
        """True for a database on a server, which has many clients and is further away than a file."""
        return self._opened.location.server is not None

    @property
    def fenced(self) -> bool:
        """True for the store of a job, whose problems no other worker of the fleet tries meanwhile."""
        return self._fence is not None

    @property
    def read_only(self) -> bool:
        """True if writing is known to be impossible."""
        return self._opened.read_only

    def close(self) -> None:
        """Closes every connection; the store cannot be used afterwards."""
        self._opened.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    # releases

    def create_release(
        self, name: str, *, op: str | None = None, hardware: Sequence[Mapping[str, Any]] | None = None
    ) -> Release:
        """Stores a release of the winners, or of those of one op or some hardware. It never changes.

        Made again of the same winners and runs it is left as it is. Raises InvalidRecordError for a bad name, for a
        name that other winners have, and where there is no winner.
        """
        releases.check_name(name)
        content = self.winners_content(op=op, hardware=hardware)
        try:
            return self.add_release(name, content)
        except ExchangeError:
            told = " that was asked for" if op or hardware else ""
            raise InvalidRecordError(f"{self.url} has no winner{told}", hint="run `tune` to find some") from None

    def add_release(self, name: str, content: bytes) -> Release:
        """Stores a release of this content, see ``releases``; one that is there already is left as it is.

        Raises InvalidRecordError for a bad name, and where other winners have the name; ExchangeError for bad content.
        """
        with self._opened.writing() as session:
            return releases.add(session, name, content)

    # writing

    def start_run(self, environment: Environment, details: Mapping[str, Any] | None = None) -> str:
        """Stores the start of a tuning run; returns the run's uid."""
        run = StoredRun(new_uid(), environment, now(), details=details or {})
        with self._opened.writing() as session:
            writing.add_runs(session, Identities(session, [], environments=[environment]), [run])
        return run.uid

    def end_run(self, run: str, details: Mapping[str, Any] | None = None) -> None:
        """Stores the end of a run, with its summary ``details`` (A/A noise, power, clocks)."""
        summary = plain_mapping(details or {}, "run.summary", lenient=True)
        with self._opened.writing() as session:
            writing.require_run(session, run)
            session.execute(update(RunRow).where(RunRow.id == run).values(ended=now(), summary=summary))

    def add_trials(self, run: str, trials: Sequence[Trial]) -> None:
        """Adds trials of a run. A trial whose uid is stored already is skipped, so a retry is harmless."""
        if not trials:
            return
        with self._opened.writing() as session:
            writing.require_run(session, run)
            identities = Identities(session, trials, known=self._known)
            writing.add_trials(session, identities, [PlainTrial.of(run, trial) for trial in trials])
        self._known |= identities.found

    def add_trial(self, run: str, trial: Trial, *, since: int, statuses: Collection[str]) -> Trial:
        """Adds a trial of a run, see ``add_new_trials``; returns it, or another run's trial in its place."""
        return self.add_new_trials(run, [trial], since=since, statuses=statuses)[0]

    def add_new_trials(
        self, run: str, trials: Sequence[Trial], *, since: int, statuses: Collection[str]
    ) -> list[Trial]:
        """Adds trials of a run; returns each, or another run's trial if there is one, which stays the only one.

        Such a trial is the last of the same candidate and artifact under the same conditions, stored after row
        ``since`` with one of these ``statuses``: of two runs that try a candidate at once, the later learns what the
        other has found. A trial whose uid is stored already is skipped, so a retry is harmless.
        """
        if not trials:
            return []
        with self._opened.writing() as session:
            writing.require_run(session, run)
            identities = Identities(session, trials, known=self._known)
            tried.hold(session, identities, trials)
            found = tried.others_of(session, run, trials, identities, since, statuses)
            new = [trial for trial, other in zip(trials, found, strict=True) if other is None]
            writing.add_trials(session, identities, [PlainTrial.of(run, trial) for trial in new])
        self._known |= identities.found
        return [other or trial for trial, other in zip(trials, found, strict=True)]

    def publish(self, run: str, decision: Decision, finals: Sequence[Final] = ()) -> bool:
        """Stores a decision with its finals. True if it became the winner, since ``decision.previous`` still was.

        Where its problem, environment and regime have no winner yet it becomes the first, whatever ``previous`` says:
        that may be the winner under other software. False if another process published meanwhile: the decision is kept,
        the winner stays, and the finals must be run against the new winner. A decision that is stored already is left
        as it is, so a retry is harmless. Raises LostLeaseError, and stores nothing, if the store's fence does not hold.
        """
        with self._opened.writing() as session:
            job = None if self._fence is None else fencing.hold(session, self._fence)
            writing.require_run(session, run)
            if writing.is_stored(session, decision):  # by an earlier call, whose answer was lost
                return writing.is_winner(session, decision)
            identities = Identities(session, [], [(decision, finals)])
            number = writing.add_decisions(session, identities, [(run, decision)])[decision.uid]
            writing.add_finals(session, identities, [(number, decision, finals)])
            place = writing.place_of(writing.measured(decision, identities), decision.protocol.regime)
            won = writing.swap_winner(session, place, number, decision.previous)
            if won and self._fence is not None and job is not None:
                fencing.record(session, self._fence, job, place["problem_id"], number)
            return won

    def load(self, stream: TextIO) -> int:
        """Imports a file that :meth:`export` wrote; returns the number of new records.

        A bad line raises ExchangeError with its number and fault, and nothing of the file is stored.
        """
        from .exchange import lines

        return self.add_lines(lines(stream))

    def add_lines(self, lines: Iterable[tuple[int, ExchangeLine]]) -> int:
        """Imports lines, each beside its number, as ``exchange.lines`` reads them; returns the number of new records.

        One transaction, whose write lock is held meanwhile.
        """
        from .exchange.importing import add_lines

        with self._opened.writing() as session:
            return add_lines(session, lines)

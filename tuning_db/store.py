"""The store: writes and reads runs, trials, decisions and winners. Every write is one short transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sqlalchemy import Select, func, select, text, update
from sqlalchemy.orm import Session

from . import reading, writing
from .engine import Opened, open_database, upgrade_database
from .identities import CandidateKey, Environment, ProblemKey, Protocol
from .identity_rows import Identities, Known, candidate_key
from .keys import digest, plain_mapping
from .location import locate
from .models import (
    TRIAL_FIELDS,
    CandidateRow,
    DecisionRow,
    HardwareRow,
    ProblemRow,
    ProtocolRow,
    RunRow,
    SoftwareRow,
    TrialRow,
    WinnerRow,
)
from .records import Decision, Final, PlainTrial, Run, Statistics, Trial, new_uid, now
from .searches import Search, searches_of

if TYPE_CHECKING:
    from .exchange import Line


_NEWEST = (DecisionRow.created.desc(), DecisionRow.id.desc())
"""The order of decisions, newest first."""


class Store:
    """An open tuning database. Threads may share it; after a fork the child gets connections of its own.

    Every method raises a TuningDBError when the database cannot be read or written.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._known: Known = {}

    @classmethod
    def open(cls, url: str | Path | None = None, *, create: bool = True, migrate: bool = True) -> Store:
        """Opens the database at ``url``: a path or SQLAlchemy URL, else ``KERNEL_REGISTRY_DB``, else the default file.

        With ``create`` a missing database is made, else it is a MissingDatabaseError. With ``migrate`` an older schema
        is brought up to date, else it is read unchanged. A file that cannot be written opens for reading.
        """
        return cls(open_database(locate(url), create=create, upgrade=migrate))

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

    # writing

    def start_run(self, environment: Environment, details: Mapping[str, Any] | None = None) -> str:
        """Stores the start of a tuning run; returns the run's uid."""
        run = Run(new_uid(), environment, now(), details=details or {})
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
        """Adds a trial of a run; returns it, or that of another run, which then stays the only one.

        That is the last trial of the same candidate and artifact under the same conditions, stored after row ``since``
        with one of these statuses: of two runs that try a candidate at once, the later learns what the other has found.
        """
        with self._opened.writing() as session:
            writing.require_run(session, run)
            identities = Identities(session, [trial], known=self._known)
            writing.hold(session, identities, trial)
            query = reading.select_trials().where(
                TrialRow.id > since,
                TrialRow.run_id != run,
                TrialRow.status.in_(sorted(statuses)),
                TrialRow.artifact_hash == trial.artifact_hash,
                *(getattr(TrialRow, name) == place for name, place in writing.measured(trial, identities).items()),
            )
            found = [other for _, other in reading.trials_of(session, query.order_by(TrialRow.id.desc()).limit(1))]
            if not found:
                writing.add_trials(session, identities, [PlainTrial.of(run, trial)])
        self._known |= identities.found
        return found[0] if found else trial

    def publish(self, run: str, decision: Decision, finals: Sequence[Final] = ()) -> bool:
        """Stores a decision with its finals. True if it became the winner, since ``decision.previous`` still was.

        Where its problem, environment and regime have no winner yet it becomes the first, whatever ``previous`` says:
        that may be the winner under other software. False if another process published meanwhile: the decision is kept,
        the winner stays, and the finals must be run against the new winner. A decision that is stored already is left
        as it is, so a retry is harmless.
        """
        with self._opened.writing() as session:
            writing.require_run(session, run)
            if writing.is_stored(session, decision):  # by an earlier call, whose answer was lost
                return writing.is_winner(session, decision)
            identities = Identities(session, [], [(decision, finals)])
            number = writing.add_decisions(session, identities, [(run, decision)])[decision.uid]
            writing.add_finals(session, identities, [(number, decision, finals)])
            place = writing.place_of(writing.measured(decision, identities), decision.protocol.regime)
            return writing.swap_winner(session, place, number, decision.previous)

    def load(self, stream: TextIO) -> int:
        """Imports a file that :meth:`export` wrote; returns the number of new records.

        A bad line raises ExchangeError with its number and fault, and nothing of the file is stored.
        """
        from .exchange import lines

        return self.add_lines(lines(stream))

    def add_lines(self, lines: Iterable[tuple[int, Line]]) -> int:
        """Imports lines, each beside its number, as ``exchange.lines`` reads them; returns the number of new records.

        One transaction, whose write lock is held meanwhile.
        """
        from .exchange.importing import add_lines

        with self._opened.writing() as session:
            return add_lines(session, lines)

    # reading

    def winner(
        self, problem: ProblemKey, hardware: Mapping[str, Any], software: Mapping[str, Any], regime: str = "cold"
    ) -> Decision | None:
        """The winner of exactly this problem on this hardware, under this software, else the newest under another.

        ``decision.environment.software`` is the software it was measured under.
        """
        environment = Environment(hardware, software)
        query = reading.narrowed(
            reading.select_winners().order_by((SoftwareRow.key == environment.software_key).desc(), *_NEWEST).limit(1),
            (ProblemRow.key, problem.key),
            (HardwareRow.key, environment.hardware_key),
            (WinnerRow.regime, regime),
        )
        return next(iter(self._decisions(query)), None)

    def winners(
        self,
        *,
        op: str | None = None,
        op_version: int | None = None,
        static_key: str | None = None,
        hardware: Mapping[str, Any] | None = None,
        regime: str = "cold",
    ) -> list[Decision]:
        """The winners, newest first, all or those that have every given value."""
        query = reading.narrowed(
            reading.select_winners(),
            (WinnerRow.regime, regime),
            (ProblemRow.op, op),
            (ProblemRow.op_version, op_version),
            (ProblemRow.static_key, static_key),
            (HardwareRow.key, None if hardware is None else _key(hardware)),
        )
        return self._decisions(query.order_by(*_NEWEST))

    def history(self, problem: ProblemKey, hardware: Mapping[str, Any]) -> list[Decision]:
        """Every decision about this problem on this hardware, newest first."""
        query = reading.select_decisions().where(ProblemRow.key == problem.key, HardwareRow.key == _key(hardware))
        return self._decisions(query.order_by(*_NEWEST))

    def finals(self, decision_uid: str) -> list[Final]:
        """The finals of a decision, in the order of their measurement."""
        with self._opened.reading() as session:
            return reading.finals_of(session, decision_uid)

    def trials(
        self,
        problem: ProblemKey | None = None,
        *,
        op: str | None = None,
        environment: Environment | None = None,
        protocol: Protocol | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> list[Trial]:
        """Trials, newest first, all or those that have every given value; at most ``limit``."""
        query = _trials_like(problem, environment, protocol).order_by(TrialRow.id.desc()).limit(limit)
        query = reading.narrowed(query, (ProblemRow.op, op), (TrialRow.status, status))
        with self._opened.reading() as session:
            return [trial for _, trial in reading.trials_of(session, query)]

    def trial(self, uid: str) -> Trial | None:
        """The trial with that uid; None where it is not in this database."""
        with self._opened.reading() as session:
            found = list(reading.trials_of(session, reading.select_trials().where(TrialRow.uid == uid)))
        return found[0][1] if found else None

    @contextmanager
    def each_trial(
        self,
        *,
        op: str | None = None,
        hardware: Mapping[str, Any] | None = None,
        statuses: Collection[str] = (),
        without: Collection[str] = (),
    ) -> Iterator[Iterator[Trial]]:
        """Trials, newest first, of one op, one hardware and some statuses if given: read as they are asked for.

        None is held, however many there are; the database is open for reading as long as the context is. Fields
        ``without`` which the caller can do (``samples``, ``details``) are not read, and have their defaults.
        """
        names = [name for name in ("samples", *TRIAL_FIELDS) if name not in without]
        query = reading.select_trial_columns(*names)
        if op is not None:
            query = query.where(TrialRow.problem_id.in_(select(ProblemRow.id).filter_by(op=op)))
        if hardware is not None:
            query = query.where(TrialRow.hardware_id.in_(select(HardwareRow.id).filter_by(key=_key(hardware))))
        if statuses:
            query = query.where(TrialRow.status.in_(sorted(statuses)))
        with self._opened.reading() as session:
            yield reading.each_trial(session, query.order_by(TrialRow.id.desc()), names)

    @contextmanager
    def each_search(self, *, op: str | None = None) -> Iterator[Iterator[Search]]:
        """Every search, or those of one op: read as they are asked for, as long as the context is."""
        with self._opened.reading() as session:
            yield searches_of(session, op)

    def knows(self, op: str) -> bool:
        """True if there is a trial of that op."""
        query = select(TrialRow.id).join(ProblemRow, TrialRow.problem_id == ProblemRow.id).where(ProblemRow.op == op)
        with self._opened.reading() as session:
            return session.execute(query.limit(1)).first() is not None

    def last_status(
        self, problem: ProblemKey, environment: Environment, candidate: CandidateKey, until: datetime
    ) -> str | None:
        """The status of the candidate's last trial on the problem that was made no later than ``until``, if any."""
        query = (
            _trials_like(problem, environment, None)
            .with_only_columns(TrialRow.status)
            .where(TrialRow.created <= until, CandidateRow.key == candidate_key(problem.op, candidate))
        )
        with self._opened.reading() as session:
            return session.execute(query.order_by(TrialRow.id.desc()).limit(1)).scalar_one_or_none()

    def trials_since(
        self, number: int, problem: ProblemKey, environment: Environment, protocol: Protocol
    ) -> tuple[int, list[Trial]]:
        """(last row number, trials) of a problem's trials stored after row ``number``, oldest first.

        On a server a row with a smaller number can become visible after one with a greater: ask again with a number
        some way back, and skip the uids that are known.
        """
        query = _trials_like(problem, environment, protocol).where(TrialRow.id > number).order_by(TrialRow.id)
        with self._opened.reading() as session:
            found = list(reading.trials_of(session, query))
        return max((row.id for row, _ in found), default=number), [trial for _, trial in found]

    def newest_trial(self, after: int = 0, run: str = "") -> tuple[int, bool]:
        """(row of the last trial, or ``after``; True if a run but ``run`` stored one since). Reads rows since."""
        others = func.count(TrialRow.id).filter(TrialRow.run_id != run)
        query = select(func.max(TrialRow.id), others).where(TrialRow.id > after)
        with self._opened.reading() as session:
            newest, count = session.execute(query).one()
        return newest or after, count > 0

    def runs(self, limit: int | None = None) -> list[Run]:
        """Tuning runs, newest first."""
        query = reading.select_runs().order_by(RunRow.started.desc(), RunRow.id).limit(limit)
        with self._opened.reading() as session:
            return list(reading.runs_of(session, query))

    def statistics(self) -> Statistics:
        """The number of rows per kind of record, and the size of the database."""
        tables = RunRow, TrialRow, ProblemRow, CandidateRow, DecisionRow, WinnerRow
        with self._opened.reading() as session:
            counted = {f"{row.__tablename__}s": select(func.count()).select_from(row) for row in tables}
            counts = {name: session.execute(query).scalar_one() for name, query in counted.items()}
            return Statistics(schema_version=self._opened.version, size_bytes=self._size(session), **counts)

    def hardware(self) -> list[Mapping[str, Any]]:
        """Every hardware identity that something was measured on, in the order in which they were stored."""
        with self._opened.reading() as session:
            return list(session.execute(select(HardwareRow.identity).order_by(HardwareRow.id)).scalars())

    def export(
        self,
        stream: TextIO,
        *,
        op: str | None = None,
        hardware: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        winners_only: bool = False,
    ) -> int:
        """Writes all records, or those of one op or some hardware, as JSON lines; returns their number.

        ``winners_only`` leaves out trials, finals and decisions that were replaced.
        """
        from .exchange.exporting import exported, exported_winners

        identities = [hardware] if isinstance(hardware, Mapping) else hardware
        keys = None if identities is None else [_key(identity) for identity in identities]
        count = -1  # the header is no record
        with self._opened.reading() as session:
            for line in (exported_winners if winners_only else exported)(session, op, keys):
                stream.write(line)
                count += 1
        return count

    def _decisions(self, query: Select[Any]) -> list[Decision]:
        with self._opened.reading() as session:
            return [decision for _, decision in reading.decisions_of(session, query)]

    def _size(self, session: Session) -> int:
        path = self._opened.location.path
        if path is not None:
            files = (path.with_name(path.name + suffix) for suffix in ("", "-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _key(hardware: Mapping[str, Any]) -> str:
    return digest(plain_mapping(hardware, "hardware"))


def _trials_like(problem: ProblemKey | None, environment: Environment | None, protocol: Protocol | None) -> Select[Any]:
    return reading.narrowed(
        reading.select_trials(),
        (ProblemRow.key, problem and problem.key),
        (HardwareRow.key, environment and environment.hardware_key),
        (SoftwareRow.key, environment and environment.software_key),
        (ProtocolRow.key, protocol and protocol.key),
    )

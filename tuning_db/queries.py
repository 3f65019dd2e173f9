"""The queries of a store: runs, trials, decisions, winners and their numbers, and an export of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session

from . import reading, releases
from .considered import Considered, considered_by
from .database.bad_rows import readable
from .database.engine import Opened
from .identities import CandidateKey, Environment, ProblemKey, Protocol
from .identity_rows import candidate_key
from .keys import digest, plain_mapping
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
from .records import Decision, Final, Statistics, StoredRun, Trial
from .releases import Release
from .schema import RELEASES
from .searches import Search, searches_of

_NEWEST = (DecisionRow.created.desc(), DecisionRow.id.desc())
"""The order of decisions, newest first."""


class Queries:
    """The questions of a store, each answered in a transaction of its own that reads."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

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
        """The winners that have every given value (None: any), newest first."""
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

    def considered(self, decision_uid: str) -> Considered | None:
        """What a decision can have considered, see ``considered``; None where the decision is not in this database."""
        with self._opened.reading() as session:
            return considered_by(session, decision_uid)

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
        """Trials that have every given value (None: any), newest first; at most ``limit``."""
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

        No trial is held in memory, however many there are; the database is open for reading as long as the context is.
        Fields named by ``without`` (``samples``, ``details``) are not read, and have their defaults.
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
        """(row number of the last trial, else ``after``; True if a run other than ``run`` stored one since)."""
        others = func.count(TrialRow.id).filter(TrialRow.run_id != run)
        query = select(func.max(TrialRow.id), others).where(TrialRow.id > after)
        with self._opened.reading() as session:
            newest, count = session.execute(query).one()
        return newest or after, count > 0

    def runs(self, limit: int | None = None) -> list[StoredRun]:
        """Tuning runs, newest first."""
        query = reading.select_runs().order_by(RunRow.started.desc(), RunRow.id).limit(limit)
        with self._opened.reading() as session:
            return list(reading.runs_of(session, query))

    def run(self, uid: str) -> StoredRun | None:
        """The tuning run with that uid; None where it is not in this database."""
        with self._opened.reading() as session:
            return next(iter(reading.runs_of(session, reading.select_runs().where(RunRow.id == uid))), None)

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
            found = session.execute(select(HardwareRow.identity).order_by(HardwareRow.id)).scalars()
            return list(readable(session, "hardware", found, lambda one: plain_mapping(one, "hardware")))

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

    def winners_content(
        self,
        *,
        op: str | None = None,
        hardware: Sequence[Mapping[str, Any]] | None = None,
        brief: bool = False,
    ) -> bytes:
        """The content that a release of the winners has, or of those of one op or some hardware; see ``releases``.

        ``brief``: of their finals only a time for the best candidate of each implementation.
        """
        from .exchange.exporting import exported_set

        keys = None if hardware is None else [_key(identity) for identity in hardware]
        with self._opened.reading() as session:
            return releases.joined(exported_set(session, op, keys, brief=brief))

    def releases(self) -> list[Release]:
        """Every release, newest first."""
        if self._opened.version < RELEASES:
            return []
        with self._opened.reading() as session:
            return releases.every(session)

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

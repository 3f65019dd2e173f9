"""Questions to a database that are answered within seconds, or not at all.

A file is read without SQLAlchemy, the import of which takes longer than all the rest.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CorruptedDatabaseError, UnreachableDatabaseError
from ..schema import STAMPS, VERSION_TABLE, check_readable, read_version, refuse_foreign, version_of
from .faults import sqlite_code, told_of, translated
from .files import Access, check_file, connect, second_access
from .location import Location, locate

_Result = TypeVar("_Result")

AnsweredRow = tuple[Any, ...]
QueryAnswers = Callable[[str, Mapping[str, Any]], list[AnsweredRow]]
"""A function that returns the rows of a query with named values."""


@dataclass(frozen=True)
class Ask:
    """``ask(query, values)`` returns the rows of a query with named values; ``is_file``: SQLite answers, no server."""

    _answer: QueryAnswers
    is_file: bool

    def __call__(self, query: str, values: Mapping[str, Any]) -> list[AnsweredRow]:
        return self._answer(query, values)


_TABLES = frozenset({"candidate", "decision", "hardware", "implementation", "problem", "run", "software", "winner"})


def answered(database: str | Path | None, seconds: float, question: Callable[[Ask], _Result]) -> _Result:
    """The result of ``question``, which asks queries of the database at ``database``, see ``Store.open``.

    Raises MissingDatabaseError where there is none, UnreachableDatabaseError where it does not answer within
    ``seconds``, and the errors of ``Store.open``.
    """
    place = locate(database)
    if place.server is not None:
        import sqlalchemy.orm  # noqa: F401  not on the clock

    def read() -> _Result:
        ask = _of_server if place.server is not None else _of_file
        return ask(place, question, time.monotonic() + seconds)

    return within(seconds, place.shown, read)


def within(
    seconds: float, shown: str, work: Callable[[], _Result], hint: str = "see whether another process holds it"
) -> _Result:
    """The result or exception of ``work``, which runs in a thread that is left to itself after ``seconds``.

    Raises UnreachableDatabaseError with ``hint`` then: no timeout of a driver covers a dead file system or server.
    """
    done: queue.SimpleQueue[tuple[_Result | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as fault:
            done.put((None, fault))

    threading.Thread(target=run, daemon=True, name="kernel-registry: reads winners").start()
    try:
        result, fault = done.get(timeout=seconds)
    except queue.Empty:
        raise UnreachableDatabaseError(f"{shown} did not answer within {seconds:g} s", hint=hint) from None
    if fault is not None:
        raise fault
    return result  # type: ignore[return-value]


def _of_file(place: Location, question: Callable[[Ask], _Result], deadline: float) -> _Result:
    path, shown = place.path, place.shown
    assert path is not None
    check_file(path, shown, create=False)
    try:
        try:
            return _of_access(Access(path, "ro"), shown, question, deadline)
        except sqlite3.Error as fault:
            second = second_access(path, sqlite_code(fault))
            if second is None:
                raise
            return _of_access(second, shown, question, deadline)
    except sqlite3.Error as fault:
        raise translated(shown, fault) from fault


def _of_access(access: Access, shown: str, question: Callable[[Ask], _Result], deadline: float) -> _Result:
    with closing(connect(access, seconds=max(deadline - time.monotonic(), 0))) as connection:
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        connection.execute("BEGIN")
        _check_tables(connection, shown)

        ask = Ask(lambda query, values: connection.execute(query, values).fetchall(), is_file=True)
        try:
            return question(ask)
        except sqlite3.OperationalError as fault:
            if "decode" not in str(fault):
                raise
            connection.text_factory = _text  # a row that is no text is found out when it is asked for
            return question(ask)


def _check_tables(connection: sqlite3.Connection, shown: str) -> None:
    """Raises a TuningDBError unless the file has this store's tables (no views), in a version that can be read."""
    kinds = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'"))
    if VERSION_TABLE not in kinds:
        refuse_foreign((name for name, kind in kinds.items() if kind == "table"), shown)
        check_readable(0, shown)
    for name in sorted({*_TABLES, VERSION_TABLE}):
        if (kind := kinds.get(name)) != "table":
            raise CorruptedDatabaseError(f"{shown}: {name} is {f'a {kind}' if kind else 'missing'}, expected a table")
    check_readable(version_of([stamp for (stamp,) in connection.execute(STAMPS)], shown), shown)


def _of_server(place: Location, question: Callable[[Ask], _Result], deadline: float) -> _Result:
    from sqlalchemy import text
    from sqlalchemy.pool import NullPool

    from .server import make_engine

    assert place.server is not None
    seconds = max(deadline - time.monotonic(), 0)
    # a thread that was abandoned ends by itself, too
    engine = make_engine(place.server, place.shown, NullPool, silence_s=seconds)
    with told_of(place.shown), engine.connect() as connection:
        connection.execute(text(f"SET statement_timeout = {int(seconds * 1000) + 1}"))
        connection.execute(text("SET TIME ZONE 'UTC'"))
        check_readable(read_version(connection, place.shown), place.shown)

        def answer(query: str, values: Mapping[str, Any]) -> list[AnsweredRow]:
            return [tuple(row) for row in connection.execute(text(query), dict(values))]

        return question(Ask(answer, is_file=False))


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None

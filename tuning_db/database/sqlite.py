"""SQLite through SQLAlchemy: engines of files, their schema read without changing them, write-ahead logging."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, Pool, QueuePool

from ..models import parsed_json
from ..schema import read_version
from .faults import sqlite_code
from .files import BUSY_SECONDS, Access, connect, journal_of, network_file_system, second_access
from .opened_files import OpenedFiles

WRITES = "tuning_db_writes"
"""Execution option of an engine whose transactions take the write lock when they begin."""

_Result = TypeVar("_Result")

_log = logging.getLogger("tuning_db")


def probe(path: Path, shown: str) -> tuple[Access, int]:
    """(access that worked, version of the schema) of an existing file.

    A read-only connection reads it, which leaves another application's file unchanged.
    """
    access = Access(path, "ro")
    try:
        return access, _version(access, shown)
    except DBAPIError as fault:
        second = second_access(path, sqlite_code(fault.orig))
        if second is None:
            raise
        return second, _version(second, shown)


def make_engine(
    access: Access, pool: type[Pool] = QueuePool, *, foreign_keys: bool = True, files: OpenedFiles | None = None
) -> Engine:
    """An engine in driver autocommit: every transaction begins explicitly, writing ones with BEGIN IMMEDIATE.

    A migration rebuilds tables and needs ``foreign_keys`` off, which SQLite only allows outside a transaction. With
    ``files`` every connection is to these.
    """

    def connected() -> sqlite3.Connection:
        with nullcontext() if files is None else files.connecting():
            return connect(access, foreign_keys=foreign_keys)

    engine = create_engine(
        "sqlite://",
        creator=connected,
        poolclass=pool,
        json_deserializer=parsed_json,
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def set_journal(access: Access, shown: str) -> None:
    """Sets write-ahead logging on a local file system, on a network file system a rollback journal, with a warning.

    Another process may set the mode at the same time: its lock is waited for, and the mode that is read back counts.
    """
    network = network_file_system(access.path)
    if network is not None:
        _log.warning(
            "%s is on a network file system (%s), where one host at a time can use SQLite; "
            "for several, set KERNEL_REGISTRY_DB to a PostgreSQL URL",
            shown,
            network,
        )
    wanted = "wal" if network is None else "delete"
    connection = connect(access)
    try:
        patiently(lambda: _switch(connection, wanted))
    finally:
        connection.close()


def patiently(action: Callable[[], _Result]) -> _Result:
    """Repeats ``action`` while it raises SQLite's "locked", since some locks do not wait for the busy timeout."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return action()
        except (sqlite3.Error, DBAPIError) as fault:
            code = sqlite_code(fault.orig if isinstance(fault, DBAPIError) else fault)
            if code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED} or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _switch(connection: sqlite3.Connection, wanted: str) -> None:
    if journal_of(connection) != wanted:
        connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()


def _version(access: Access, shown: str) -> int:
    def read() -> int:
        with make_engine(access, NullPool).connect() as connection:
            return read_version(connection, shown)

    return patiently(read)

"""SQLite files: connecting to one, checking one without changing it, setting write-ahead logging."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, Pool, QueuePool

from .errors import CorruptedDatabaseError, MissingDatabaseError, UnreachableDatabaseError
from .faults import sqlite_code
from .mounts import network_file_system
from .schema import State, read_state

BUSY_SECONDS = 60.0
"""Seconds that a statement waits for another process's lock."""

WRITES = "tuning_db_writes"
"""Execution option of an engine whose transactions take the write lock when they begin."""

Result = TypeVar("Result")

_MAGIC = b"SQLite format 3\0"
"""The first bytes of every SQLite file (an empty file, or one being made, has none or zeros)."""

_log = logging.getLogger("tuning_db")


@dataclass(frozen=True)
class Access:
    """How a file is opened: SQLite's ``mode`` (ro, rw, rwc); ``immutable`` if no other process can be writing to it."""

    path: Path
    mode: str
    immutable: bool = False

    @property
    def uri(self) -> str:
        """The file's URI for SQLite, with these options."""
        return f"file:{quote(str(self.path))}?mode={self.mode}" + ("&immutable=1" if self.immutable else "")


def check_file(path: Path, shown: str, *, create: bool) -> bool:
    """True if there is a file at ``path``; with ``create`` its folder is made when missing.

    Raises MissingDatabaseError without ``create``, UnreachableDatabaseError for a path that can never be a database.
    """
    try:
        if path.is_dir():
            raise UnreachableDatabaseError(
                f"{shown} is a folder, expected a file", hint=f"name a file in it, e.g. {path / 'tuning.db'}"
            )
        if path.exists():
            _check_header(path, shown)
            return True
        if not create:
            raise MissingDatabaseError(f"there is no database at {shown}", hint="run `tune` to make one")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        hint = "check the path, or set KERNEL_REGISTRY_DB (or --db) to another place"
        raise UnreachableDatabaseError(f"{shown} cannot be opened ({fault})", hint=hint) from fault
    if not os.access(path.parent, os.W_OK):
        raise UnreachableDatabaseError(
            f"{shown} cannot be made: its folder is not writable",
            hint="set KERNEL_REGISTRY_DB (or --db) to a place that is",
        )
    return False


def _check_header(path: Path, shown: str) -> None:
    """Raises CorruptedDatabaseError for a file that does not begin as SQLite files do.

    SQLite itself takes any file shorter than a page for an empty database, and would overwrite it.
    """
    if not os.access(path, os.R_OK):
        raise UnreachableDatabaseError(f"{shown} cannot be opened: you may not read it", hint="check its permissions")
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
    if start != _MAGIC and any(start):
        raise CorruptedDatabaseError(
            f"{shown} is not a SQLite database (it begins with {start!r})",
            hint="it was left as it is; set KERNEL_REGISTRY_DB (or --db) to another place",
        )


def probe(path: Path, shown: str) -> tuple[Access, State]:
    """Reads the schema of an existing file through a read-only connection, which leaves another application's file
    unchanged.

    Returns the access that worked. A log without an index, in a folder where no index can be made, needs ``immutable``,
    which is only safe while no -wal file lies beside the database.
    """
    access = Access(path, "ro")
    try:
        return access, _state(access, shown)
    except DBAPIError as fault:
        if sqlite_code(fault.orig) not in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
            raise
        log = path.with_name(path.name + "-wal")
        if writable(path):  # a crashed writer's journal must be rolled back first: only a writer can
            access = Access(path, "rw")
        elif os.access(path, os.R_OK) and not (log.exists() and log.stat().st_size):
            access = Access(path, "ro", immutable=True)
        else:
            raise
        return access, _state(access, shown)


def writable(path: Path) -> bool:
    """True if file and folder can be written: the journal is made in the folder."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def make_engine(access: Access, pool: type[Pool] = QueuePool, *, foreign_keys: bool = True) -> Engine:
    """An engine in driver autocommit: every transaction begins explicitly, writing ones with BEGIN IMMEDIATE.

    A migration rebuilds tables and needs ``foreign_keys`` off, which SQLite only allows outside a transaction.
    """
    engine = create_engine("sqlite://", creator=lambda: _connect(access, foreign_keys), poolclass=pool)

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
    connection = _connect(access)
    try:
        patiently(lambda: _switch(connection, wanted))
    finally:
        connection.close()


def patiently(action: Callable[[], Result], seconds: float = BUSY_SECONDS) -> Result:
    """Repeats ``action`` while it raises SQLite's "locked", since some locks do not wait for the busy timeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except (sqlite3.Error, DBAPIError) as fault:
            code = sqlite_code(fault.orig if isinstance(fault, DBAPIError) else fault)
            if code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED} or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _switch(connection: sqlite3.Connection, wanted: str) -> None:
    if _journal(connection) != wanted:
        connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()


def _state(access: Access, shown: str) -> State:
    def read() -> State:
        with make_engine(access, NullPool).connect() as connection:
            return read_state(connection, shown)

    return patiently(read)


def _connect(access: Access, foreign_keys: bool = True) -> sqlite3.Connection:
    connection = sqlite3.connect(
        access.uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        if access.mode != "ro" and _journal(connection) == "wal":
            # with a log, NORMAL risks the last transactions at a power cut but never the file
            connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _journal(connection: sqlite3.Connection) -> str:
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])

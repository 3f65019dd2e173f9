"""Opens a database: checks its schema, migrates it on request, and makes new connections after a fork."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, Pool, QueuePool

from ..errors import OutdatedSchemaError, ReadOnlyDatabaseError, TuningDBError
from ..models import parsed_json
from ..reading import SCHEMA_VERSION
from ..schema import LATEST, check_readable, migrate, read_version
from . import server, sqlite
from .bad_rows import SHOWN
from .faults import LOCK_TIMEOUT, told_of
from .files import BUSY_SECONDS, Access, check_file, writable
from .location import Location
from .opened_files import OpenedFiles

SILENCE_S = 600.0
"""Seconds without a byte of a server's answer after which it is lost: longer than a query of a great database takes."""


@dataclass
class Opened:
    """An open database: ``reader`` begins plain transactions, ``writer`` transactions that take the write lock at once.

    ``found`` is the version of its schema before it was opened, ``version`` the one now. ``files`` are those of a
    database that is no server's.
    """

    location: Location
    reader: Engine
    writer: Engine
    version: int
    read_only: bool
    found: int
    files: OpenedFiles | None = None
    closed: bool = False

    def close(self) -> None:
        """Close every connection."""
        self.closed = True
        self.reader.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that reads; its ``info`` tells the version of the schema."""
        with self._told(), self.reader.connect() as connection:
            with Session(connection, info=self._info()) as session:
                yield session
            self._check_files(connection, wrote=False)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session in one transaction that writes."""
        shown = self.location.shown
        with self._told():
            if self.read_only:
                hint = "make file and folder writable, or set KERNEL_REGISTRY_DB (or --db) to another place"
                raise ReadOnlyDatabaseError(f"{shown} can only be read", hint=hint)
            if self.version < LATEST:
                message = f"{shown} has schema version {self.version}, only version {LATEST} can be added to"
                raise OutdatedSchemaError(message, hint="`registry db upgrade` brings it up to date, with all it holds")
            with self.writer.connect() as connection:
                with Session(connection, info=self._info()) as session, session.begin():
                    yield session
                self._check_files(connection, wrote=True)

    def _check_files(self, connection: Connection, *, wrote: bool) -> None:
        """Raises MovedDatabaseError where the files have been deleted or replaced; what was written is saved first.

        ``connection`` is that of the transaction that has ended: another may be in use, and a new one is refused.
        """
        if self.files is not None:
            driven = connection.connection.driver_connection
            assert isinstance(driven, sqlite3.Connection)
            self.files.check(driven, wrote=wrote)

    def _info(self) -> dict[Any, Any]:
        return {SCHEMA_VERSION: self.version, SHOWN: self.location.shown}

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context in which faults name the database. Raises TuningDBError for one that was closed.

        A fault of tables that are not as they were may be that of another version, which has upgraded them meanwhile.
        """
        if self.closed:
            raise TuningDBError(f"{self.location.shown} was closed", hint="open it again with Store.open()")
        try:
            with told_of(self.location.shown):
                yield
        except TuningDBError as fault:
            if type(fault) is TuningDBError:
                with told_of(self.location.shown), self.reader.connect() as connection:
                    check_readable(read_version(connection, self.location.shown), self.location.shown)
            raise


def open_database(
    location: Location, *, create: bool, upgrade: bool, pooled: bool = True, silence_s: float = SILENCE_S
) -> Opened:
    """Opens the database at ``location``.

    Without ``create`` a missing database is a MissingDatabaseError. With ``upgrade`` an older schema is migrated;
    without ``upgrade`` it is read unchanged, or refused with OutdatedSchemaError. ``pooled``: whether connections to a
    server stay open between transactions. ``silence_s``: how long a server may be silent, but for a migration.
    """
    with told_of(location.shown):
        if location.server:
            opened = _open_server(location, create, upgrade, QueuePool if pooled else NullPool, silence_s)
        else:
            opened = _open_file(location, create, upgrade)
    _engines.add(opened.reader)
    return opened


def upgrade_database(location: Location) -> tuple[int, int]:
    """Migrates the database at ``location`` in one transaction; returns the versions of its schema before and now.

    Raises MissingDatabaseError where there is none, ReadOnlyDatabaseError where an older one cannot be written.
    """
    hint = "make file and folder writable, then run it again"
    try:
        opened = open_database(location, create=False, upgrade=True)
    except OutdatedSchemaError as fault:  # what can be written has been migrated
        raise ReadOnlyDatabaseError(f"{fault.message}, and can only be read", hint=hint) from None
    opened.reader.dispose()
    if opened.version < LATEST:
        message = f"{location.shown} has schema version {opened.version} and can only be read"
        raise ReadOnlyDatabaseError(message, hint=hint)
    return opened.found, opened.version


def _open_file(location: Location, create: bool, upgrade: bool) -> Opened:
    path, shown = location.path, location.shown
    assert path is not None
    access, found = Access(path, "rwc"), 0
    create = create and not location.read_only
    if check_file(path, shown, create=create):
        access, found = sqlite.probe(path, shown)
    version = found
    read_only = access.mode != "rwc" and (location.read_only or not writable(path))
    if not read_only:
        access = replace(access, mode="rwc" if create else "rw", immutable=False)
        if found < LATEST and (upgrade if found else create):
            engine = sqlite.make_engine(access, NullPool, foreign_keys=False)
            _migrate(engine.execution_options(**{sqlite.WRITES: True}), shown)
            version = LATEST
        if create or upgrade:
            check_readable(version, shown)
            sqlite.set_journal(access, shown)
    check_readable(version, shown)
    if access.mode == "rwc":  # it is there by now, and is not to be made a second time
        access = replace(access, mode="rw")
    files = OpenedFiles(path, shown, logged=not access.immutable)
    engine = sqlite.make_engine(access, files=files)
    writer = engine.execution_options(**{sqlite.WRITES: True})
    engine.connect().close()  # stays open, so that no other file gets this one's number
    return Opened(location, engine, writer, version, read_only, found, files)


def _open_server(location: Location, create: bool, upgrade: bool, pool: type[Pool], silence_s: float) -> Opened:
    url, shown = location.server, location.shown
    assert url is not None
    engine = server.make_engine(url, shown, pool, silence_s, pool_pre_ping=True, json_deserializer=parsed_json)
    try:
        with engine.connect() as connection:
            found = version = read_version(connection, shown)
        if found < LATEST and (upgrade if found else create):
            _migrate(server.make_engine(url, shown, NullPool, None), shown)
            version = LATEST
        check_readable(version, shown)
    except BaseException:
        engine.dispose()
        raise
    return Opened(location, engine, engine, version, location.read_only, found)


def _migrate(engine: Engine, shown: str) -> None:
    """Checks the version, migrates and stamps in one transaction, so that processes migrating at once all succeed.

    Raises a DBAPIError where another client uses the tables of a server for longer than the busy timeout.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            try:
                with engine.begin() as connection:
                    return migrate(connection, shown)
            except DBAPIError as fault:  # others use the tables: they go on meanwhile
                if getattr(fault.orig, "sqlstate", None) != LOCK_TIMEOUT or time.monotonic() > deadline:
                    raise
            time.sleep(1.0)
    finally:
        engine.dispose()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Pool] = []


def _after_fork() -> None:
    """Gives a forked child new connections and keeps its parent's, which it must neither use nor close."""
    for engine in list(_engines):
        _inherited.append(engine.pool)
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)

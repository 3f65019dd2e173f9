"""The schema's version: read when a database is opened, migrated by alembic when it is older, refused when newer.

Versions are numbers; alembic's revision 0001 is version 1.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import (
    CorruptedDatabaseError,
    ForeignDatabaseError,
    MissingDatabaseError,
    NewerSchemaError,
    OutdatedSchemaError,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERSION_TABLE = "tuning_db_version"
"""The table that holds the schema's version. A database that has it is one of ours."""

STAMPS = f"SELECT version_num FROM {VERSION_TABLE}"
"""Query of the version that the table holds."""

LATEST = 6
"""The version that this code writes."""

READABLE = frozenset({1, 2, 3, 4, 5, 6})
"""The versions that are read without migrating them."""

RELEASES = 4
"""The version that added the table of releases."""

MIGRATIONS = Path(__file__).parent / "migrations"

_ADVISORY_LOCK = 0x6B72_6462
"""Number of the advisory lock on a PostgreSQL server that a migrating process holds; any number would do."""

_LOCK_MS = 1000
"""Milliseconds that a migration on a PostgreSQL server waits for those who use a table."""

_alembic = threading.Lock()
"""alembic keeps its environment in module globals, so two threads must not migrate at once."""


def read_version(connection: Connection, shown: str) -> int:
    """The version of the schema of the database behind ``connection``; 0 when it has no tables of ours.

    Raises ForeignDatabaseError for another application's tables, NewerSchemaError for a version above LATEST,
    CorruptedDatabaseError when the version is missing.
    """
    from sqlalchemy import inspect, text

    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        if connection.dialect.name != "sqlite":  # a server's database may be shared with other applications
            from .queue.tables import ALL

            tables &= set(ALL.tables)
        refuse_foreign(tables, shown)
        return 0
    return version_of([stamp for (stamp,) in connection.execute(text(STAMPS))], shown)


def version_of(found: Sequence[object], shown: str) -> int:
    """The schema version that the rows ``found`` of the version table state.

    Raises NewerSchemaError for a version above LATEST, CorruptedDatabaseError for anything but one number.
    """
    stamps = list(map(str, found))
    if len(stamps) != 1 or not re.fullmatch("[0-9]{1,9}", stamps[0]):
        message = f"{shown}: the table {VERSION_TABLE} holds {stamps!r:.80}, expected one version"
        raise CorruptedDatabaseError(message, hint="restore a backup, or use another database; this one was left as is")
    version = int(stamps[0])
    if version > LATEST:
        raise NewerSchemaError(
            f"{shown} has schema version {version}, this installation knows versions up to {LATEST}",
            hint="upgrade kernel-registry, or use another database; this one was left as it is",
        )
    return version


def check_readable(version: int, shown: str) -> None:
    """Raises MissingDatabaseError for an empty database, OutdatedSchemaError for one too old to be read unmigrated."""
    if version == 0:
        raise MissingDatabaseError(f"{shown} holds no tuning results yet", hint="run `tune` to make some")
    if version not in READABLE:
        raise OutdatedSchemaError(
            f"{shown} has schema version {version}, this installation reads {sorted(READABLE)}",
            hint="`registry db upgrade` brings it up to date, with all it holds",
        )


def migrate(connection: Connection, shown: str) -> None:
    """Migrates the database to LATEST: version check, migration and stamp, all in the caller's write transaction.

    In an empty one the tables are made as they are now, without loading alembic and taking every step.
    """
    from sqlalchemy import text

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        # behind a step that waits for a reader to end, all other readers wait: dispatch gives up after 2 s
        connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
    version = read_version(connection, shown)
    if version == LATEST:
        return  # another process was first
    if version == 0:
        _create(connection)
        return
    migrate_stepwise(connection)


def migrate_stepwise(connection: Connection) -> None:
    """Takes every step from the version that the database has to LATEST, with alembic, in the caller's transaction."""
    with _alembic:
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _create(connection: Connection) -> None:
    """Makes the tables of LATEST and the version table, as alembic makes it, in an empty database."""
    from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, String, Table

    from .queue.tables import ALL

    key = PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")
    stamp = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), nullable=False), key)
    ALL.create_all(connection, checkfirst=False)
    stamp.create(connection)
    connection.execute(stamp.insert().values(version_num=f"{LATEST:04}"))


def refuse_foreign(theirs: Iterable[str], shown: str) -> None:
    """Raises ForeignDatabaseError if there are tables of another application: ``theirs``."""
    if names := sorted(theirs):
        named = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise ForeignDatabaseError(
            f"{shown} belongs to another application (tables {named})",
            hint="it was left as it is; set KERNEL_REGISTRY_DB (or --db) to another place",
        )

"""The schema's version: read when a database is opened, migrated by alembic when it is older, refused when newer.

Versions are numbers; alembic's revision 0001 is version 1.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from .errors import (
    CorruptedDatabaseError,
    ForeignDatabaseError,
    MissingDatabaseError,
    NewerSchemaError,
    OutdatedSchemaError,
)
from .models import VERSION_TABLE, StoredRow

LATEST = 2
"""The version that this code writes."""

READABLE = frozenset({1, 2})
"""The versions that are read without migrating them."""

MIGRATIONS = Path(__file__).parent / "migrations"

_ADVISORY_LOCK = 0x6B72_6462
"""Number of the advisory lock on a PostgreSQL server that a migrating process holds; any number would do."""

_alembic = threading.Lock()
"""alembic keeps its environment in module globals, so two threads must not migrate at once."""


@dataclass(frozen=True)
class State:
    """The version of a database's schema; 0 when it has no tables of ours."""

    version: int

    @property
    def behind(self) -> bool:
        """True if a migration is needed before anything is written."""
        return self.version < LATEST


def read_state(connection: Connection, shown: str) -> State:
    """The state of the database behind ``connection``.

    Raises ForeignDatabaseError for another application's tables, NewerSchemaError for a version above LATEST,
    CorruptedDatabaseError when the version is missing.
    """
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        _refuse_foreign(connection, tables, shown)
        return State(0)
    stamps = [str(stamp) for (stamp,) in connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))]
    if len(stamps) != 1 or not stamps[0].isdigit():
        message = f"{shown}: the table {VERSION_TABLE} holds {stamps}, expected one version"
        raise CorruptedDatabaseError(message, hint="restore a backup, or use another database; this one was left as is")
    version = int(stamps[0])
    if version > LATEST:
        raise NewerSchemaError(
            f"{shown} has schema version {version}, this installation knows versions up to {LATEST}",
            hint="upgrade kernel-registry, or use another database; this one was left as it is",
        )
    return State(version)


def check_readable(state: State, shown: str) -> None:
    """Raises MissingDatabaseError for an empty database, OutdatedSchemaError for one too old to be read unmigrated."""
    if state.version == 0:
        raise MissingDatabaseError(f"{shown} holds no tuning results yet", hint="run `tune` to make some")
    if state.version not in READABLE:
        raise OutdatedSchemaError(
            f"{shown} has schema version {state.version}, this installation reads {sorted(READABLE)}",
            hint="`registry db upgrade` brings it up to date, with all it holds",
        )


def migrate(connection: Connection, shown: str) -> None:
    """Migrates the database to LATEST: version check, migration and stamp, all in the caller's write transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    if not read_state(connection, shown).behind:
        return  # another process was first
    with _alembic:
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _refuse_foreign(connection: Connection, tables: set[str], shown: str) -> None:
    """Raises ForeignDatabaseError for a file with other tables, and for a server on which a table has one of our names.

    A server's database may be shared with other applications, a file may not.
    """
    theirs = sorted(tables if connection.dialect.name == "sqlite" else tables & set(StoredRow.metadata.tables))
    if theirs:
        named = ", ".join(theirs[:5]) + (", ..." if len(theirs) > 5 else "")
        raise ForeignDatabaseError(
            f"{shown} belongs to another application (tables {named})",
            hint="it was left as it is; set KERNEL_REGISTRY_DB (or --db) to another place",
        )

"""Translates exceptions of SQLAlchemy and of drivers into the store's own, which name the database and a remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import (
    BusyDatabaseError,
    CorruptedDatabaseError,
    FullDatabaseError,
    LostDatabaseError,
    ReadOnlyDatabaseError,
    TuningDBError,
    UnreachableDatabaseError,
)

_FREE = "free some space and run again: what is stored already is not measured again"

_MOVE = "set KERNEL_REGISTRY_DB (or --db) to another place"

_GRANT = (
    "its owner may: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO the user, and USAGE ON ALL"
    " SEQUENCES"
    f" (SELECT alone for reading; CREATE ON SCHEMA public to make or upgrade the tables); or {_MOVE}"
)

_SQLITE: dict[int, tuple[type[TuningDBError], str, str]] = {
    sqlite3.SQLITE_NOTADB: (CorruptedDatabaseError, "is not a SQLite database", f"it was left as it is; {_MOVE}"),
    sqlite3.SQLITE_CORRUPT: (
        CorruptedDatabaseError,
        "is damaged",
        f"it was left as it is; `sqlite3 FILE .recover` may save its data, or {_MOVE}",
    ),
    sqlite3.SQLITE_READONLY: (ReadOnlyDatabaseError, "can only be read", f"make file and folder writable, or {_MOVE}"),
    sqlite3.SQLITE_BUSY: (BusyDatabaseError, "is held by another process", "wait for it to finish, or stop it"),
    sqlite3.SQLITE_LOCKED: (BusyDatabaseError, "is held by another process", "wait for it to finish, or stop it"),
    sqlite3.SQLITE_CANTOPEN: (UnreachableDatabaseError, "cannot be opened", f"check its permissions, or {_MOVE}"),
    sqlite3.SQLITE_PERM: (UnreachableDatabaseError, "cannot be opened", f"check its permissions, or {_MOVE}"),
    sqlite3.SQLITE_INTERRUPT: (BusyDatabaseError, "did not answer in time", "see whether another process holds it"),
    sqlite3.SQLITE_FULL: (FullDatabaseError, "cannot grow: the disk is full", _FREE),
    sqlite3.SQLITE_IOERR: (TuningDBError, "cannot be read or written", f"check the disk, or {_MOVE}"),
}
"""Errors by SQLite's primary result code: the class, what it says of the database, and its hint."""

LOCK_TIMEOUT = "55P03"
"""PostgreSQL's code for a lock that was waited for as long as was asked."""

_NOT_ALLOWED = (TuningDBError, "does not let this user do that", _GRANT)

_UNDONE = (
    LostDatabaseError,
    "has undone a transaction for another client's",
    "nothing of it is stored; run it again, and not during an upgrade",
)

_POSTGRESQL: dict[str, tuple[type[TuningDBError], str, str]] = {
    "25006": (ReadOnlyDatabaseError, "can only be read", _MOVE),
    "25P03": (
        LostDatabaseError,
        "has closed the connection",
        "this process, or its network, stood still within a transaction, which the server has ended",
    ),
    "3F000": _NOT_ALLOWED,  # without any right to the schema the server says that there is none
    "40001": _UNDONE,
    "40P01": _UNDONE,  # a deadlock, as with an upgrade
    "42501": _NOT_ALLOWED,
    LOCK_TIMEOUT: (BusyDatabaseError, "is held by another process", "wait for it to finish, or stop it"),
    "53100": (FullDatabaseError, "cannot grow: the server's disk is full", _FREE),
}
"""Errors by PostgreSQL's code: the class, what it says of the database, and its hint."""


def sqlite_code(fault: BaseException | None) -> int | None:
    """SQLite's primary result code (5 is BUSY), or None when the fault is not SQLite's."""
    code = getattr(fault, "sqlite_errorcode", None) if isinstance(fault, sqlite3.Error) else None
    return None if code is None else code & 0xFF


@contextmanager
def told_of(shown: str) -> Iterator[None]:
    """Context in which exceptions of SQLAlchemy and drivers become TuningDBErrors about the database at ``shown``."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    try:
        yield
    except DBAPIError as fault:
        raise translated(shown, fault.orig) from fault
    except sqlite3.Error as fault:
        raise translated(shown, fault) from fault
    except PoolTimeoutError as fault:
        hint = "close sessions or use fewer threads"
        raise BusyDatabaseError(f"{shown}: every connection is in use", hint=hint) from fault
    except SQLAlchemyError as fault:
        raise TuningDBError(f"{shown}: {_first_line(fault)}") from fault
    except UnicodeEncodeError as fault:  # e.g. an argument of a command line; drivers let it through
        hint = "expected text without surrogates"
        raise TuningDBError(f"{shown} holds no text that is not UTF-8: {fault.object!a:.80}", hint=hint) from fault


def translated(shown: str, fault: BaseException | None) -> TuningDBError:
    """A driver's exception as the store's own, about the database at ``shown``."""
    state = getattr(fault, "sqlstate", None)
    known = _SQLITE.get(sqlite_code(fault) or 0) or _POSTGRESQL.get(state or "")
    if known is not None:
        kind, problem, hint = known
        return kind(f"{shown} {problem} ({_first_line(fault)})", hint=hint)
    if _is_operational(fault) and (state is None or state[:2] in {"08", "28", "3D", "57"}):
        hint = f"check that the server runs and takes this user, or {_MOVE}"
        kind = LostDatabaseError if state is None or state in _GOING or state[:2] == "08" else UnreachableDatabaseError
        return kind(f"{shown} cannot be reached ({_first_line(fault)})", hint=hint)
    return TuningDBError(f"{shown}: {_first_line(fault)}")


_GOING = frozenset({"57P01", "57P02", "57P03"})
"""PostgreSQL's codes for a server that is shut down, has crashed, or is starting and accepts no connection yet."""


def _is_operational(fault: BaseException | None) -> bool:
    """True for a driver's fault of the connection or the server; drivers have classes of their own for each state."""
    names = {kind.__name__ for kind in type(fault).__mro__}
    return "OperationalError" in names and not isinstance(fault, sqlite3.Error)


def _first_line(fault: BaseException | None) -> str:
    lines = str(fault).strip().splitlines()
    return lines[0].strip() if lines else type(fault).__name__

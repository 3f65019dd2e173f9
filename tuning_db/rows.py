"""Rows by their keys: finds the numbers of those that are stored, and adds those that are not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from .models import StoredRow

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

CHUNK = 500
"""Keys in one IN list: far below every database's limit on parameters."""

_ROWS_TOGETHER = 500
"""Rows in one INSERT of SQLite's."""

Ids = dict[str, int]


def insert_new(session: Session, row: type[StoredRow]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that skips rows whose key is stored already."""
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(row).on_conflict_do_nothing()
    from sqlalchemy.dialects import postgresql  # a tenth of the time that a short command takes to start

    return postgresql.insert(row).on_conflict_do_nothing()


def chunks(keys: Iterable[str]) -> Iterable[list[str]]:
    """``keys`` in sorted lists of at most CHUNK."""
    ordered = sorted(keys)
    return (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))


def numbers_of(
    session: Session, key: InstrumentedAttribute[str], number: InstrumentedAttribute[int], keys: Iterable[str]
) -> Ids:
    """Key -> row number, for each of ``keys`` that is stored in the column ``key``."""
    found: Ids = {}
    for chunk in chunks(keys):
        found |= {name: place for name, place in session.execute(select(key, number).where(key.in_(chunk)))}  # noqa: C416
    return found


def add_new(session: Session, row: type[StoredRow], values: list[dict[str, Any]]) -> None:
    """Adds the rows whose key is not stored yet."""
    if values:  # the connection's insert: the session's would look at each row as an object first
        session.connection().execute(insert_new(session, row), values)


def add_rows(session: Session, row: type[StoredRow], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Adds the rows whose key is not stored yet; returns how many these were.

    A row has values of the columns ``names``, which stand in the table's order.

    Values go to the driver as they are, JSON as text: SQLAlchemy's conversion of each takes longer than the insert.
    """
    connection = session.connection()
    made = insert_new(session, row).inline().compile(dialect=connection.dialect, column_keys=list(names))
    if made.positiontup is not None:
        assert made.positiontup == list(names), "rows have the table's order"
        return _insert_together(connection, str(made), len(names), list(rows))
    values = [dict(zip(names, one, strict=True)) for one in rows]
    return connection.exec_driver_sql(str(made), values).rowcount if values else 0


def _insert_together(connection: Connection, insert: str, width: int, rows: Sequence[Sequence[Any]]) -> int:
    """Adds many rows in one statement: after each statement another thread may run and delay the next one."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    most = min(_ROWS_TOGETHER, driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width)
    before, values, behind = insert.rpartition(f"({', '.join('?' * width)})")
    count = 0
    for start in range(0, len(rows), most):
        some = rows[start : start + most]
        statement = f"{before}{', '.join([values] * len(some))}{behind}"
        count += connection.exec_driver_sql(statement, tuple(chain.from_iterable(some))).rowcount
    return count

"""The database's clock as an SQL expression: seconds since 1970."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class DatabaseSeconds(FunctionElement[float]):
    """This instant by the clock of the database, also within a transaction that began or waited earlier."""

    type = Double()
    inherit_cache = True


@compiles(DatabaseSeconds, "sqlite")
def _of_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(DatabaseSeconds, "postgresql")
def _of_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"

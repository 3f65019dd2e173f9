"""The tuner's store: trials, the decisions made from them and the winners, in SQLite or PostgreSQL.

Importing this package loads neither SQLAlchemy nor alembic; the first use of :class:`Store` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import (
    BusyDatabaseError,
    CorruptedDatabaseError,
    ExchangeError,
    ForeignDatabaseError,
    InvalidRecordError,
    LostDatabaseError,
    MissingDatabaseError,
    NewerSchemaError,
    OutdatedSchemaError,
    ReadOnlyDatabaseError,
    TuningDBError,
    UnreachableDatabaseError,
)
from .identities import REGIMES, CandidateKey, Environment, ProblemKey, Protocol
from .records import Decision, Final, Interval, Statistics, StoredRun, Transfer, Trial, is_noise

if TYPE_CHECKING:
    from .store import Store

__all__ = [
    "REGIMES",
    "BusyDatabaseError",
    "CandidateKey",
    "CorruptedDatabaseError",
    "Decision",
    "Environment",
    "ExchangeError",
    "Final",
    "ForeignDatabaseError",
    "Interval",
    "InvalidRecordError",
    "LostDatabaseError",
    "MissingDatabaseError",
    "NewerSchemaError",
    "OutdatedSchemaError",
    "ProblemKey",
    "Protocol",
    "ReadOnlyDatabaseError",
    "Statistics",
    "Store",
    "StoredRun",
    "Transfer",
    "Trial",
    "TuningDBError",
    "UnreachableDatabaseError",
    "is_noise",
]


def __getattr__(name: str) -> object:
    if name == "Store":
        from .store import Store

        globals()["Store"] = Store
        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

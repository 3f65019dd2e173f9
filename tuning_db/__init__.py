"""The tuner's store: trials, the decisions made from them and the winners, in SQLite or PostgreSQL.

Importing this package loads neither SQLAlchemy nor alembic; the first use of :class:`Store` or :class:`JobQueue` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import (
    BusyDatabaseError,
    CorruptedDatabaseError,
    ExchangeError,
    ForeignDatabaseError,
    FullDatabaseError,
    InvalidRecordError,
    LostDatabaseError,
    LostLeaseError,
    MissingDatabaseError,
    MovedDatabaseError,
    NewerSchemaError,
    OutdatedSchemaError,
    ReadOnlyDatabaseError,
    TuningDBError,
    UnreachableDatabaseError,
)
from .identities import REGIMES, CandidateKey, Environment, ProblemKey, Protocol
from .records import Decision, Final, Interval, Statistics, StoredRun, Transfer, Trial, is_noise

if TYPE_CHECKING:
    from .queue.job_queue import JobQueue
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
    "FullDatabaseError",
    "Interval",
    "InvalidRecordError",
    "JobQueue",
    "LostDatabaseError",
    "LostLeaseError",
    "MissingDatabaseError",
    "MovedDatabaseError",
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
    if name == "JobQueue":
        from .queue.job_queue import JobQueue

        globals()["JobQueue"] = JobQueue
        return JobQueue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

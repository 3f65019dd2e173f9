"""The store's exceptions. Each message says what was given and what was expected, ``hint`` says what to do next."""

from __future__ import annotations


class TuningDBError(Exception):
    """Base of every error the store raises on purpose. ``message`` is one line, ``hint`` the next thing to try."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message}\n  {hint}")
        self.message = message
        self.hint = hint


class MissingDatabaseError(TuningDBError):
    """No database was found, or one without tables, and none was to be created."""


class UnreachableDatabaseError(TuningDBError):
    """The database cannot be opened: no such server, no permission, a folder instead of a file, a bad URL."""


class LostDatabaseError(UnreachableDatabaseError):
    """A server that went away, does not answer or has undone a transaction, which may pass: it is started again."""


class FullDatabaseError(LostDatabaseError):
    """The database's disk has no room for what is to be written, which may pass: nothing of it is stored."""


class MovedDatabaseError(UnreachableDatabaseError):
    """A file was deleted or replaced while it was open; ``message`` tells where a copy of what it held is saved.

    ``stored``: whether that copy has what the transaction that raises this has written.
    """

    def __init__(self, message: str, *, hint: str = "", stored: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.stored = stored


class CorruptedDatabaseError(TuningDBError):
    """The file is not a SQLite database, or is damaged."""


class ForeignDatabaseError(TuningDBError):
    """The database is intact but belongs to another application."""


class NewerSchemaError(TuningDBError):
    """The database was written by a newer version of this package."""


class OutdatedSchemaError(TuningDBError):
    """The database has an older schema, which must be migrated before it is read or written."""


class ReadOnlyDatabaseError(TuningDBError):
    """A write was tried on a database that can only be read."""


class BusyDatabaseError(TuningDBError):
    """Another process held the database's lock for longer than the busy timeout."""


class LostLeaseError(TuningDBError):
    """A worker's lease of a job has expired, or another worker holds the job: it may not decide anything any more."""


class InvalidRecordError(TuningDBError, ValueError):
    """A record cannot be stored: a type that JSON lacks, a number that is not finite, an unknown run."""


class ExchangeError(TuningDBError, ValueError):
    """A line of an exchange file cannot be read; the message holds its number and its fault."""

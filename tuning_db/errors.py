"""The store's exceptions: each says what was given, what was expected and, as ``hint``, what to do next."""

from __future__ import annotations


class TuningDBError(Exception):
    """Base of every error the store raises on purpose. ``message`` is one line, ``hint`` the next thing to try."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message}\n  {hint}")
        self.message = message
        self.hint = hint


class MissingDatabaseError(TuningDBError):
    """There is no database at that place, or one without any table, and it was not to be created."""


class UnreachableDatabaseError(TuningDBError):
    """A place that cannot be opened: no such server, no permission, a folder instead of a file, a bad URL."""


class CorruptedDatabaseError(TuningDBError):
    """A file that is not SQLite, or is damaged."""


class ForeignDatabaseError(TuningDBError):
    """A sound database that belongs to another application."""


class NewerSchemaError(TuningDBError):
    """A database written by a newer version of this package."""


class OutdatedSchemaError(TuningDBError):
    """A database of an older schema that this version cannot read without migrating it."""


class ReadOnlyDatabaseError(TuningDBError):
    """A write to a database that can only be read."""


class BusyDatabaseError(TuningDBError):
    """Another process held the database for longer than the busy timeout."""


class InvalidRecordError(TuningDBError, ValueError):
    """Data that cannot be stored: a type JSON does not have, a number that is not finite, an unknown run."""


class ExchangeError(TuningDBError, ValueError):
    """A line of an exchange file that cannot be read; the message holds its number and its fault."""

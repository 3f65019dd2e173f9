"""Rows that nobody's tuner wrote: each is skipped by itself, and the log tells of the first of its kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

SHOWN = "shown"
"""The name in a session's ``info`` under which the database's URL stands, with passwords hidden."""

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What it raises to make a record of values that a column should not hold."""

_LONGEST = 200
_log = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()
_Record = TypeVar("_Record")


def readable(session: Session, what: str, rows: Iterable[Any], make: Callable[[Any], _Record]) -> Iterator[_Record]:
    """The record that ``make`` makes of each row, without those of which it can make none; see :func:`skip`."""
    for row in rows:
        try:
            made = make(row)
        except UNREADABLE as fault:
            skip(session, what, fault)
            continue
        yield made


def skip(session: Session, what: str, fault: Exception) -> None:
    """Logs a warning that rows of this kind ("trial") are skipped, and why: once in a process for each database."""
    shown = str(session.info.get(SHOWN, "the database"))
    if (shown, what) in _told:
        return
    _told.add((shown, what))
    why = f"{type(fault).__name__}: {fault}"[:_LONGEST]
    told = why if why.isprintable() else ascii(why)[1:-1]  # it may quote the row, and goes to a terminal
    _log.warning("%s: a %s that cannot be read is skipped, and others like it: %s", shown, what, told)

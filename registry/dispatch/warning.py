"""Warnings of dispatch, at the line of the user's code that made the call: the first of a kind; the rest are counted.

Every event is a line of the log ``registry.dispatch``: the first of a kind at level WARNING, the rest at INFO.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
import weakref
from collections import Counter as Counts

from ..author_code import outer_frame
from ..forking import renewed_in_child
from ..untrusted.visible import visible

LOG = logging.getLogger("registry.dispatch")
# without logging set up, a program gets the warning only, not the line of the log on standard error, too
LOG.addHandler(logging.NullHandler())

_MOST_SUBJECTS = 1024


class DispatchWarning(RuntimeWarning):
    """A tuned or declared implementation cannot be used; another one, or the reference, answers the call."""


class _Told:
    """The number of events by the id of their subject (an implementation, an op) and their kind."""

    def __init__(self) -> None:
        self._lock = renewed_in_child(self, "_lock", threading.Lock)
        self._counts: dict[int, tuple[weakref.ref[object], Counts[str]]] = {}

    def add(self, subject: object, kind: str) -> int:
        """Count one event; returns the number of events so far."""
        with self._lock:
            known = self._counts.get(id(subject))
            if known is None or known[0]() is not subject:
                if len(self._counts) >= _MOST_SUBJECTS:
                    self._counts.clear()
                known = self._counts[id(subject)] = weakref.ref(subject), Counts()
            known[1][kind] += 1
            return known[1][kind]

    def count(self, subject: object, kind: str) -> int:
        known = self._counts.get(id(subject))
        return 0 if known is None or known[0]() is not subject else known[1][kind]


_TOLD = _Told()
times_told = _TOLD.count


def tell_caller(subject: object, kind: str, text: str) -> None:
    """Warn of the first event of a kind about ``subject``, at the innermost line outside of this package.

    Further events, which each size may cause with another text, are counted and logged.
    """
    text = visible(text)
    first = _TOLD.add(subject, kind) == 1
    LOG.log(logging.WARNING if first else logging.INFO, "%s", text)
    if not first:
        return
    frame = outer_frame(sys._getframe(1))
    warnings.warn_explicit(
        text,
        DispatchWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )

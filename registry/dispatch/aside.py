"""Plans that failed before they enqueued anything: put aside with the reason, so that nobody tries them again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable

from .plan import Candidate
from .winners import DispatchWarning


class Aside:
    """Failures by problem and candidate. Warns once for each implementation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[tuple[Hashable, str], str] = {}
        self._warned: set[tuple[str, str]] = set()

    def put(self, op: str, place: Hashable, candidate: Candidate, fault: BaseException) -> str:
        """Remember that ``candidate`` fails at ``place``. Returns the reason."""
        first = str(fault).strip().splitlines()
        reason = f"{type(fault).__name__}: {first[0] if first else 'no message'}"
        name = candidate.implementation.name
        with self._lock:
            self._reasons[place, candidate.key] = reason
            warn = (op, name) not in self._warned
            self._warned.add((op, name))
        if warn:
            text = f"{op}: {candidate} failed and is put aside, something else runs instead: {reason}"
            warnings.warn(text, DispatchWarning, stacklevel=5)
        return reason

    def reason(self, place: Hashable, candidate: Candidate) -> str:
        """Why the candidate was put aside there; empty when it was not."""
        return self._reasons.get((place, candidate.key), "")

    def reasons(self, place: Hashable) -> dict[str, str]:
        """Reasons at one place, by candidate key."""
        return {key: reason for (where, key), reason in list(self._reasons.items()) if where == place}

    def clear(self) -> None:
        """Try everything again, e.g. after a new winner was stored."""
        with self._lock:
            self._reasons.clear()
            self._warned.clear()

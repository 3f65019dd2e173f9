"""Plans that failed before they enqueued anything: put aside with the reason, so that nobody tries them again."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from ..plans.plan import Candidate
from ..warning import warn_caller

MOST_REASONS = 4096
"""Per op. What is older is tried again, at the cost of failing once more."""


class Failures:
    """Failures by problem and candidate. Warns once for each implementation."""

    def __init__(self, most_reasons: int = MOST_REASONS) -> None:
        self.generation = 0
        self._most_reasons = most_reasons
        self._lock = threading.Lock()
        self._reasons: dict[tuple[Hashable, str], str] = {}
        self._warned: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, op: str, place: Hashable, candidate: Candidate, fault: BaseException, generation: int) -> str:
        """Remember that ``candidate`` fails at ``place``, unless all was forgotten since ``generation``.

        Returns the reason. Warns, even so.
        """
        first = str(fault).strip().splitlines()
        reason = f"{type(fault).__name__}: {first[0] if first else 'no message'}"
        name = candidate.implementation.name
        with self._lock:
            if generation == self.generation:
                self._reasons[place, candidate.key] = reason
            while len(self._reasons) > self._most_reasons:
                del self._reasons[next(iter(self._reasons))]
            warn = (op, name) not in self._warned
            self._warned.add((op, name))
        if warn:
            warn_caller(f"{op}: {candidate} failed and is put aside, something else runs instead: {reason}")
        return reason

    def reason(self, place: Hashable, candidate: Candidate) -> str:
        """Why the candidate was put aside there; empty when it was not."""
        if not self._reasons:
            return ""
        return self._reasons.get((place, candidate.key), "")

    def reasons(self, place: Hashable) -> dict[str, str]:
        """Reasons at one place, by candidate key."""
        return {key: reason for (where, key), reason in list(self._reasons.items()) if where == place}

    def renew_locks(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Try everything again, e.g. after a new winner was stored. What is failing at the moment does not count."""
        with self._lock:
            self.generation += 1
            self._reasons.clear()
            self._warned.clear()

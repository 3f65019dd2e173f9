"""Plans that failed before they enqueued anything: put aside with the reason, so that nobody tries them again."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from ...author_code import where_raised
from ...forking import renewed_in_child
from ...implementation import Implementation
from ..plans.plan import Candidate
from ..warning import tell_caller, times_told

MOST_REASONS = 4096
"""Per op. What is older is tried again, at the cost of failing once more."""


class Failures:
    """Failures by problem and candidate. Warns of an implementation's first of each kind."""

    def __init__(self, most_reasons: int = MOST_REASONS) -> None:
        self.generation = 0
        self._most_reasons = most_reasons
        self._lock = renewed_in_child(self, "_lock", threading.Lock)
        self._reasons: dict[tuple[Hashable, str], str] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, op: str, place: Hashable, candidate: Candidate, fault: BaseException, generation: int) -> str:
        """Remember that ``candidate`` fails at ``place``, unless all was forgotten since ``generation``.

        Returns the reason. Warns, even so.
        """
        first = str(fault).strip().splitlines()
        place_of_fault = where_raised(fault, candidate.implementation)
        reason = f"{type(fault).__name__}: {first[0] if first else 'no message'}{place_of_fault}"
        with self._lock:
            if generation == self.generation:
                self._reasons[place, candidate.key] = reason
            while len(self._reasons) > self._most_reasons:
                del self._reasons[next(iter(self._reasons))]
        told = f"{op}: {candidate} failed and is put aside, something else runs instead: {reason}"
        tell_caller(candidate.implementation, _kind(reason), told)
        return reason

    def reason(self, place: Hashable, candidate: Candidate) -> str:
        """Why the candidate was put aside there; empty when it was not."""
        if not self._reasons:
            return ""
        return self._reasons.get((place, candidate.key), "")

    def reasons(self, place: Hashable) -> dict[str, str]:
        """Reasons at one place, by candidate key."""
        return {key: reason for (where, key), reason in list(self._reasons.items()) if where == place}

    def clear(self) -> None:
        """Try everything again, e.g. after a new winner was stored. What is failing at the moment does not count."""
        with self._lock:
            self.generation += 1
            self._reasons.clear()


def told_of(implementation: Implementation, reason: str) -> str:
    """The reason why an implementation was put aside, with the number of its failures of that kind so far."""
    count = times_told(implementation, _kind(reason))
    return f"put aside: {reason}" + (f" ({count} such failures in this process)" if count > 1 else "")


def _kind(reason: str) -> str:
    return f"failed: {reason.partition(':')[0]}"

"""Failed candidates by problem: put aside with the reason, permanently or until memory may be free again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ...author_code import where_run_failed
from ...errors import RegistryError, in_a_line
from ...faults.device_faults import out_of_memory
from ...forking import renewed_in_child
from ...implementation import Implementation
from ..plans.plan import Candidate
from ..warning import DispatchWarning, tell_caller, times_told

MOST_REASONS = 4096
"""The most failures kept per op. A candidate whose failure was dropped is tried again."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 64.0
"""The longest time, in seconds, that a candidate is put aside for lack of memory; it doubles with each failure."""


@dataclass(frozen=True)
class FailedCandidate:
    """Why a candidate is put aside, and until when by ``Failures.clock``; ``retry_at`` is infinite if permanently."""

    reason: str
    retry_at: float = math.inf
    pause_s: float = math.inf


class Failures:
    """Failures by problem and candidate. It warns of an implementation's first failure of each kind."""

    def __init__(self, most_reasons: int = MOST_REASONS) -> None:
        self.generation = 0
        self.clock: Callable[[], float] = time.monotonic
        self._most_reasons = most_reasons
        self._lock = renewed_in_child(self, "_lock", threading.Lock)
        self.known: dict[tuple[Hashable, str], FailedCandidate] = {}
        """Failed candidates by place and candidate key."""

    def __len__(self) -> int:
        return len(self.known)

    def put(self, op: str, place: Hashable, candidate: Candidate, fault: BaseException, generation: int) -> str:
        """Remember that ``candidate`` fails at ``place``, unless ``clear`` was called since ``generation``.

        It is tried again after a pause if it ran out of memory. Warns in any case, and returns the reason.
        """
        remedy = f" ({' '.join(fault.hint.split())})" if isinstance(fault, RegistryError) and fault.hint else ""
        reason = f"{in_a_line(fault)}{remedy}{where_run_failed(fault, candidate.implementation)}"
        failure, told = FailedCandidate(reason), f"{op}: {candidate} failed and is put aside"
        with self._lock:
            if out_of_memory(fault):
                known = self.known.get((place, candidate.key))
                pause_s = FIRST_PAUSE_S if known is None else min(2 * known.pause_s, LONGEST_PAUSE_S)
                failure = FailedCandidate(reason, self.clock() + pause_s, pause_s)
                told = f"{op}: {candidate} ran out of memory and is put aside for {pause_s:g} s"
            if generation == self.generation:
                self.known.pop((place, candidate.key), None)
                self.known[place, candidate.key] = failure
            while len(self.known) > self._most_reasons:
                del self.known[next(iter(self.known))]
        tell_caller(candidate.implementation, _kind(reason), f"{told}, something else runs instead: {reason}")
        return reason

    def find(self, place: Hashable, candidate: Candidate) -> FailedCandidate | None:
        """The failure for which the candidate is put aside at ``place`` now; None if it is not."""
        if not self.known:
            return None
        found = self.known.get((place, candidate.key))
        return None if found is None or found.retry_at <= self.clock() else found

    def reasons(self, place: Hashable) -> dict[str, str]:
        """The reasons of the candidates that are put aside at ``place``, by candidate key."""
        now = self.clock()
        known = list(self.known.items())
        return {key: one.reason for (where, key), one in known if where == place and one.retry_at > now}

    def settle(self, place: Hashable, candidate: Candidate) -> None:
        """Forget that the candidate failed at ``place``, since it has run there."""
        if self.known:
            with self._lock:
                self.known.pop((place, candidate.key), None)

    def pause(self, failure: FailedCandidate) -> Callable[..., bool]:
        """A condition for table entries: True until the failed candidate is to be tried again."""
        return lambda *_given: self.clock() < failure.retry_at

    def clear(self) -> None:
        """Forget all failures, e.g. after a new winner was stored, and those of calls that are running now."""
        with self._lock:
            self.generation += 1
            self.known.clear()


def tell_broken(op: str, candidate: Candidate, fault: BaseException) -> None:
    """Warn that the CUDA context is lost, which a candidate found, but may not have caused."""
    tell_caller(
        DispatchWarning,
        "broken context",
        f"{op}: the GPU reports to {candidate} the fault of an earlier kernel and refuses all further work of this"
        f" process, which must be started anew (CUDA_LAUNCH_BLOCKING=1 shows the kernel): {in_a_line(fault)}",
    )


def told_of(implementation: Implementation, reason: str) -> str:
    """The reason why an implementation was put aside, with the number of its failures of that kind so far."""
    count = times_told(implementation, _kind(reason))
    return f"put aside: {reason}" + (f" ({count} such failures in this process)" if count > 1 else "")


def _kind(reason: str) -> str:
    return f"failed: {reason.partition(':')[0]}"

"""Compares samples on inputs that a candidate has met before with samples on inputs that it never met.

A few elements change from one timed sample to the next. A candidate that remembers earlier inputs, and computes again
only the results that depend on changed elements, is right, but no real call is as fast.
"""

from __future__ import annotations

import statistics
from typing import Literal, Protocol

from ..measure.samplers import Sampler
from .verdicts import WrongError

_BOUND = 1.5
"""Times the time on known inputs: a candidate that takes longer on new ones remembers results."""
_ALIKE, _LONGER = 2, 8
"""Pairs of samples within the bound that acquit, and pairs beyond it that may convict, whichever are reached first.

Where other programs take the cores, a pair in five of an honest candidate is beyond the bound: disturbances only add
time. So the shortest sample on new inputs must be beyond it, too, compared with the median on known ones.
"""
_LONG_US = 10_000.0
"""A launch of at least so many µs finds nothing in a cache that was written before it, and one pair acquits."""
_RETAKES = 2

_TOLD = (
    "it takes {:.3g} times as long on inputs that it has not met before: it remembers what it met, and computes only"
    " what depends on changed elements, but other calls bring inputs that are new"
)

Inputs = Literal["usual", "known", "new"]
"""The usual inputs; known: the usual ones, all their memory written again; new: never used, written as well."""


class Meets(Protocol):
    """Decides which inputs samples find."""

    def meet(self, inputs: Inputs) -> None:
        """Let the following samples find inputs of this kind."""


class RenewedPairs:
    """Pairs of samples on the same copies, with caches in the same state: as much memory is written before both."""

    def __init__(self, meets: Meets) -> None:
        self._meets = meets
        self._pairs: list[tuple[float, float]] = []
        self._alike = self._longer = 0

    def go_on(self, sampler: Sampler) -> bool:
        """Take one more pair, unless enough were within the bound; True if enough are now. Raises WrongError."""
        is_long = sampler.launch_us >= _LONG_US
        enough = 1 if is_long else _ALIKE
        if self._alike < enough:
            try:
                self._add(*self._pair(sampler, is_long=is_long))
            finally:
                self._meets.meet("usual")
        return self._alike >= enough

    def _pair(self, sampler: Sampler, *, is_long: bool) -> tuple[float, float]:
        place = sampler.place
        self._meets.meet("known")
        if not is_long or self._pairs:
            # the inputs on these copies may have been new in the latest sample
            _sample(sampler, place)
        known_us = _sample(sampler, place)
        self._meets.meet("new")
        new_us = _sample(sampler, place)
        self._meets.meet("usual")
        if not is_long:
            # the next sample finds the caches as those before did
            sampler.take(1)
        return known_us, new_us

    def _add(self, known_us: float, new_us: float) -> None:
        self._pairs.append((known_us, new_us))
        if new_us <= _BOUND * known_us:
            self._alike += 1
            return
        self._longer += 1
        if self._longer < _LONGER:
            return
        times = min(new for _, new in self._pairs) / statistics.median(known for known, _ in self._pairs)
        if times > _BOUND:
            raise WrongError("wrong_result", _TOLD.format(times))
        self._alike = _ALIKE


def _sample(sampler: Sampler, place: int) -> float:
    for _ in range(1 + _RETAKES):
        sampler.place = place
        (taken,) = sampler.take(1)
        if taken.clean:
            break
    return taken.us

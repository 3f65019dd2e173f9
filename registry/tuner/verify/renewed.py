"""Compares samples on inputs that a candidate has met before with samples on inputs that it never met.

A few elements change from one timed sample to the next. A candidate that remembers earlier inputs, and computes again
only the results that depend on changed elements, is right, but no real call is as fast.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
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
_ALIKE_WAITED = 3
"""Pairs after a pause within the bound that acquit, more than are beyond it."""
_LONG_US = 10_000.0
"""A launch of at least so many µs finds nothing in a cache that was written before it, and one pair acquits."""
_RETAKES = 2

_TOLD = (
    "it takes {:.3g} times as long on inputs that it has not met before: it remembers what it met, and computes only"
    " what depends on changed elements, but other calls bring inputs that are new"
)

_TOLD_WAITED = (
    "it takes {:.3g} times as long after a pause as after none: it tells by the pause that inputs were written, which"
    " are compared with new ones, and works less where it is timed"
)

Inputs = Literal["usual", "known", "new", "waited", "quick"]
"""The usual inputs; known: the usual ones, all their memory written again; new: never used, written as well.

waited: the usual ones, after a pause as long as writing them took; quick: the usual ones, of a sample not judged."""


class Meets(Protocol):
    """Decides which inputs samples find."""

    def meet(self, inputs: Inputs) -> None:
        """Let the following samples find inputs of this kind."""


class RenewedPairs:
    """Pairs of samples on the same copies, with caches in the same state: as much memory is written before both.

    To write takes time, so that a candidate can tell these samples by the pause before them: it would work alike in
    both, and less in the others. So samples after such a pause, in which nothing was written, are compared with those
    that follow the sample before as timed ones do. These pairs are on copies that come one after the other: one copy
    launched on twice would be in the cache the second time.
    """

    def __init__(self, meets: Meets) -> None:
        self._meets = meets
        self._new = _Ratio(_TOLD, min, net=False)
        self._waited = _Ratio(_TOLD_WAITED, statistics.median, net=True)

    def go_on(self, sampler: Sampler) -> bool:
        """Take one more pair, unless enough were within the bound; True if enough are now. Raises WrongError.

        Pairs after a pause come last: by then all copies were met, and the pauses before are usual ones.
        """
        is_long = sampler.launch_us >= _LONG_US
        # a pause is short beside a long launch, and each takes time
        enough, enough_waited = (1, 0) if is_long else (_ALIKE, _ALIKE_WAITED)
        try:
            if not self._new.is_enough(enough):
                self._new.add(*self._pair(sampler, is_long=is_long))
            elif not self._waited.is_enough(enough_waited):
                self._waited.add(*self._waited_pair(sampler))
        finally:
            self._meets.meet("usual")
        return self._new.is_enough(enough) and self._waited.is_enough(enough_waited)

    def _pair(self, sampler: Sampler, *, is_long: bool) -> tuple[float, float]:
        place = sampler.place
        self._meets.meet("known")
        if not is_long or self._new.has_begun:
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

    def _waited_pair(self, sampler: Sampler) -> tuple[float, float]:
        self._meets.meet("waited")
        waited_us = sampler.sample()
        self._meets.meet("quick")
        return sampler.sample(), waited_us


class _Ratio:
    """Pairs of times, of which the second is longer where a candidate is at fault.

    ``least``: of the second times, what must be beyond the bound to convict. ``net``: pairs beyond the bound make up
    for as many within it. Who finds out by the inputs themselves that they are new does so each time, and the least of
    its times is beyond the bound. Who goes by a pause errs now and then, and may be within it by chance.
    """

    def __init__(self, told: str, least: Callable[[Iterable[float]], float], *, net: bool) -> None:
        self._told, self._least, self._net = told, least, net
        self._pairs: list[tuple[float, float]] = []
        self._longer = 0
        self._acquitted = False

    def is_enough(self, wanted: int) -> bool:
        """Whether so many pairs, or more, were within the bound, or the others are disturbances."""
        alike = len(self._pairs) - self._longer
        return self._acquitted or alike - (self._longer if self._net else 0) >= wanted

    @property
    def has_begun(self) -> bool:
        """Whether there are pairs."""
        return bool(self._pairs)

    def add(self, first_us: float, second_us: float) -> None:
        """Add a pair; raises WrongError."""
        self._pairs.append((first_us, second_us))
        if second_us <= _BOUND * first_us:
            return
        self._longer += 1
        if self._longer < _LONGER:
            return
        firsts, seconds = zip(*self._pairs, strict=True)
        times = self._least(seconds) / statistics.median(firsts)
        if times > _BOUND:
            raise WrongError("wrong_result", self._told.format(times))
        self._acquitted = True


def _sample(sampler: Sampler, place: int) -> float:
    for _ in range(1 + _RETAKES):
        sampler.place = place
        (taken,) = sampler.take(1)
        if taken.clean:
            break
    return taken.us

"""Compares samples on inputs that a candidate has met before with samples on inputs that it never met.

A few elements change from one timed sample to the next. A candidate that remembers earlier inputs, and computes again
only the results that depend on changed elements, is right, but no real call is as fast.
"""

from __future__ import annotations

import statistics
from typing import Literal, Protocol

from ..measure.cores import CoreWaits
from ..measure.samplers import Sample, Sampler
from .other_draws import OtherDraws
from .verdicts import WrongError

_BOUND = 1.5
"""Times the time on known inputs: a candidate that takes longer on new ones remembers results."""
_ALIKE, _LONGER = 2, 8
"""Pairs of samples within the bound that acquit, and pairs beyond it that may convict, whichever are reached first.

Where other programs take the cores, a pair in five of an honest candidate is beyond the bound: disturbances only add
time. So the shortest sample on new inputs must be beyond it, too, compared with the median on known ones.
"""
_ALIKE_WAITED = 2
"""Pairs after a pause within the bound that acquit, more than are beyond it."""
_MOST_WAITED = 12
"""Pairs after a pause, with those during which the process lost a core or waited for one, after which the machine is
too busy to tell.

A thread that slept during the pause waits for a core after it: in three runs at a time on two cores, honest candidates
took 1.6 to 5.7 times as long in eight pairs and were refused, 18 in 25 runs of five."""
_PAUSE_COSTS_US = 100.0
"""What a pause may cost the launches that follow it, all together: on cores with five times their load it was 35."""
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

Inputs = Literal["usual", "known", "new", "other", "waited", "quick"]
"""The usual inputs; known: the usual ones, all their memory written again; new: never used, written as well.

other: new ones, with integers of another draw, see ``other_draws``.

waited: the usual ones, after a pause as long as writing them took; quick: the usual ones, of a sample not judged."""


class Meets(Protocol):
    """Decides which inputs samples find."""

    def meet(self, inputs: Inputs) -> None:
        """Let the following samples find inputs of this kind."""

    def has_other(self) -> bool:
        """Whether there are integers of another draw that no sample has met."""


class RenewedPairs:
    """Pairs of samples on the same copies, with caches in the same state: as much memory is written before both.

    To write takes time, so that a candidate can tell these samples by the pause before them: it would work alike in
    both, and less in the others. So samples after such a pause, in which nothing was written, are compared with those
    that follow the sample before as timed ones do. These pairs are on copies that come one after the other: one copy
    launched on twice would be in the cache the second time.
    """

    def __init__(self, meets: Meets, *, renews: bool = True) -> None:
        """``renews``: whether some inputs can be new; if not, there are pairs on integers of other draws alone."""
        self._meets = meets
        self._renews = renews
        self._new, self._waited, self._others = _New(), _Waited(), OtherDraws()

    def go_on(self, sampler: Sampler) -> bool:
        """Take one more pair, unless enough were within the bound; True if enough are now. Raises WrongError.

        Pairs after a pause come last: by then all copies were met, and the pauses before are usual ones.
        """
        is_long = sampler.launch_us >= _LONG_US
        # a pause is short beside a long launch, and each takes time
        enough, enough_waited = (1, 0) if is_long else (_ALIKE, _ALIKE_WAITED)
        try:
            if self._renews and not self._new.is_enough(enough):
                self._new.add(*self._pair(sampler, "new", is_long=is_long, is_first=not self._new.has_begun))
            elif not self._is_enough_of_others(enough):
                self._others.add(*self._pair(sampler, "other", is_long=is_long, is_first=False))
            elif self._renews and not self._waited.is_enough(enough_waited):
                self._waited.add(self._waited_pair(sampler), _PAUSE_COSTS_US / sampler.in_a_row)
        finally:
            self._meets.meet("usual")
        is_enough = self._is_enough_of_others(enough)
        return is_enough and (
            not self._renews or (self._new.is_enough(enough) and self._waited.is_enough(enough_waited))
        )

    def _is_enough_of_others(self, wanted: int) -> bool:
        return self._others.is_enough(wanted) or not self._meets.has_other()

    def _pair(self, sampler: Sampler, inputs: Inputs, *, is_long: bool, is_first: bool) -> tuple[float, float]:
        place = sampler.place
        self._meets.meet("known")
        if not (is_long and is_first):
            # the inputs on these copies may have been new in the latest sample
            _sample(sampler, place)
        known_us = _sample(sampler, place)
        self._meets.meet(inputs)
        new_us = _sample(sampler, place)
        self._meets.meet("usual")
        if not is_long:
            # the next sample finds the caches as those before did
            sampler.take(1)
        return known_us, new_us

    def _waited_pair(self, sampler: Sampler) -> tuple[Sample, Sample] | None:
        """A pair, None where threads that waited for a core may have made the difference between its times."""
        waits = CoreWaits() if sampler.on_cores else None
        if waits is not None:
            # to read how long threads have waited takes time, too: a usual sample comes between that and the pause
            sampler.take(1)
        self._meets.meet("waited")
        (waited,) = sampler.take(1)
        self._meets.meet("quick")
        (quick,) = sampler.take(1)
        return None if waits is not None and waits.are_long() else (quick, waited)


class _New:
    """Pairs of times on known and on new inputs."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []
        self._longer = 0
        self._acquitted = False

    @property
    def has_begun(self) -> bool:
        """True once a pair of times has been taken."""
        return bool(self._pairs)

    def is_enough(self, wanted: int) -> bool:
        """True once ``wanted`` pairs were within the bound, or those beyond it are disturbances."""
        return self._acquitted or len(self._pairs) - self._longer >= wanted

    def add(self, known_us: float, new_us: float) -> None:
        """Add a pair; raises WrongError."""
        self._pairs.append((known_us, new_us))
        if new_us <= _BOUND * known_us:
            return
        self._longer += 1
        if self._longer < _LONGER:
            return
        times = min(new for _, new in self._pairs) / statistics.median(known for known, _ in self._pairs)
        if times > _BOUND:
            raise WrongError("wrong_result", _TOLD.format(times))
        self._acquitted = True


class _Waited:
    """Pairs of times after no pause and after one.

    A candidate that goes by a pause errs now and then, unlike one that looks at the inputs: so a pair beyond the bound
    makes up for one within it, and the shortest quarter of the times after a pause may be chance. But a pause costs an
    honest candidate some time, too, more on a busy machine: other programs fill the caches, and threads fall asleep.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []
        self._alike = self._longer = self._taken = 0
        self._acquitted = False

    def is_enough(self, wanted: int) -> bool:
        """True once ``wanted`` pairs more were within the bound than beyond it, or those beyond it are disturbances."""
        return self._acquitted or self._alike - self._longer >= wanted

    def add(self, pair: tuple[Sample, Sample] | None, allowance_us: float) -> None:
        """Add a pair, None if it tells nothing; raises WrongError.

        ``allowance_us``: what a pause may cost each launch.
        """
        self._taken += 1
        self._acquitted = self._taken >= _MOST_WAITED
        if pair is None:
            return
        quick, waited = pair
        is_alike = waited.us - allowance_us <= _BOUND * quick.us
        # a time that is short although the process lost a core tells as much as another
        if not quick.clean or not (waited.clean or is_alike):
            return
        self._pairs.append((quick.us, waited.us - allowance_us))
        if is_alike:
            self._alike += 1
            return
        self._longer += 1
        if self._longer < _LONGER:
            return
        low = sorted(waited_us for _, waited_us in self._pairs)[len(self._pairs) // 4]
        times = low / statistics.median(quick_us for quick_us, _ in self._pairs)
        if times > _BOUND:
            raise WrongError("wrong_result", _TOLD_WAITED.format(times))
        self._acquitted = True


def _sample(sampler: Sampler, place: int) -> float:
    for _ in range(1 + _RETAKES):
        sampler.place = place
        (taken,) = sampler.take(1)
        if taken.clean:
            break
    return taken.us

"""Samples of a candidate's time: the launches between two clock readings, and the memory that they use.

Samplers of device time are in ``device_samplers``; ``sampling`` chooses a sampler.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from .cores import preemptions
from .protocol import TimingProtocol

Enqueue = Callable[[], object]
"""Launch the candidate once on one of the rotating buffers."""


class Between(Protocol):
    """Called before each sample, outside of what is timed, with the copies that it launches on.

    ``last``: no other sample follows behind the same head start, so that nothing has to be enqueued quickly.
    """

    alone: bool
    """Whether the host takes so long before a sample that no other should wait behind the same head start."""

    def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
        """Do what has to be done before the sample."""

    def ready(self) -> None:
        """Do the last, short preparation before the launches, the first of which may be a warm-up on another copy."""

    def look(self) -> None:
        """Look at the outputs as soon as the clock has stopped, before another thread can go on."""

    def compare(self, sampler: Sampler) -> bool:
        """Compare a sample on inputs that were met before with one on new ones; True if enough were compared.

        Raises for a candidate that takes longer on new inputs.
        """


class Nothing:
    """Does nothing: the inputs, e.g. of the copy floor, stay as they are between samples."""

    alone: bool = False

    def __call__(self, copies: Sequence[int], *, last: bool = True) -> None: ...

    def ready(self) -> None: ...

    def look(self) -> None: ...

    def compare(self, sampler: Sampler) -> bool:
        return True


_EVICTING = 8
"""A working set of this many times the cache leaves nothing of its beginning in the cache."""
_MOST_CALLS = 1000
_FEWEST_CALLS = 16
"""Launches between two readings of the clock where there is one copy and they are short; as many need a warm-up."""
_CLOCK_US = 10.0
"""A launch of so many µs has the clock, which takes 0.1 µs, read after each."""
_HOT_SHARES = {"cuda_event": 1 / 2, "perf_counter": 1 / 32}
"""The part of the last-level cache that hot copies take, on a CPU as much as a core's own cache."""
_ROOM_SHARE = 1 / 256
"""The part of a GPU's memory that copies may take so that none comes twice in a sample: on an H200 as many bytes as
100 µs can move."""
_MOST_COPIES = 64
_WARMED_SHARE = 1 / 8
"""Launches on more than this part of a CPU's last-level cache take so long that few need a warm-up."""
_RETAKES = 2
_LONG_US = 100_000.0
"""A sample that lasts so many µs is not taken again: on a CPU it is always preempted, for a small part of it."""


class Sample(NamedTuple):
    """The time of one launch. ``clean``: nothing but launches can have been timed (no late host, no other process)."""

    us: float
    clean: bool = True


class Sampler(ABC):
    """Times one candidate, each sample averaged over as many launches as the protocol wants."""

    refused = ""
    """Why the launches could not be captured, "" where they were or where that was not tried."""
    between: Between = Nothing()

    copies = 0
    """The number of rotating copies, the first ones, that are launched on; ``sampler_for`` sets it."""

    launch_us = 0.0
    """The time of a launch, in µs, in the first look; ``sampler_for`` sets it."""

    in_a_row = 1
    """The number of launches that follow each other, with no pause before any but the first."""

    on_cores = False
    """Whether launches run on the processor's cores, which other programs use, too."""

    place = 0
    """The copy on which the next sample begins, counted from round to round, if samples do not reach all copies."""

    @property
    @abstractmethod
    def how(self) -> str:
        """How a sample is taken, in a word."""

    @abstractmethod
    def take(self, count: int) -> list[Sample]:
        """Take samples, one right after the other; the device is idle afterwards."""

    @abstractmethod
    def replay(self) -> None:
        """Launch on every copy at least once, exactly as samples do, with nothing between."""

    def cover(self) -> None:  # noqa: B027 - a sample of most covers all copies
        """Launch on the copies that no sample has reached yet, so that every output is there to be judged."""

    def sample(self) -> float:
        """One sample in µs; one that is not clean is taken again, twice at most."""
        (taken,) = self.take(1)
        for _ in range(_RETAKES):
            if taken.clean or taken.us >= _LONG_US:
                break
            (taken,) = self.take(1)
        return taken.us

    def warm_up(self, us: float) -> None:
        """Take samples for this many µs and forget them; none where the first look has launched for longer."""
        if self.launch_us > us:
            return
        began = perf_counter_ns()
        self.take(1)
        first_us = (perf_counter_ns() - began) / 1e3
        if first_us < us:
            self.take(min(_MOST_CALLS, math.ceil((us - first_us) / first_us)))

    def close(self) -> None:  # noqa: B027 - only graphs hold device memory
        """Free the sampler's memory on the device."""


class LaunchSampler(Sampler):
    """A sampler of single launches, which go round the copies; the first ``launched`` copies have been launched on."""

    def __init__(self, launches: Sequence[Enqueue], launched: int = 0) -> None:
        self._launches = launches
        self.place = self._furthest = launched

    def _turn(self, count: int) -> list[int]:
        places = range(self.place, self.place + count)
        self.place += count
        self._furthest = max(self._furthest, self.place)
        return [place % len(self._launches) for place in places]

    def cover(self) -> None:
        for launch in self._launches[self._furthest :]:
            launch()


class ScreenedSampler(LaunchSampler):
    """The sampler of a candidate whose first launches were hopeless: only these launches, ``samples``, are timed."""

    how = "first launches"

    def __init__(self, launches: Sequence[Enqueue], samples: Sequence[float]) -> None:
        super().__init__(launches, len(samples))
        self.samples = tuple(samples)

    def take(self, count: int) -> list[Sample]:
        return [Sample(self.samples[place % len(self.samples)]) for place in range(count)]

    def replay(self) -> None:
        for launch in self._launches:
            launch()


class ClockSampler(LaunchSampler):
    """perf_counter_ns around calls that return when they are done (CPU).

    A sample adds up several rounds over the copies. A sample during which the process lost a core to another one is not
    clean.

    After other code, such as the changes between samples, the first launch takes 1 µs longer: 2% of each launch in a
    round of 16 that take 3 µs. So a round of short launches begins with an untimed one, ``warm``, on a copy that no
    timed launch uses. On a copy of theirs it would leave the right output for the timed launch that comes later, and
    a candidate could do its work there and nothing while it is timed. To change elements between the two would be
    other code once more. A copy of its own evicts no more from the caches than one of theirs, and no timed launch
    finds its inputs or its output warmer than the others do. Nothing comes between it and the timed launches, which
    follow it, and each other, at one pace in all rounds, whether or not outputs are judged.
    """

    how = "perf_counter"
    on_cores = True

    def __init__(
        self,
        launches: Sequence[Enqueue],
        protocol: TimingProtocol,
        first_us: float,
        launched: int = 0,
        warm: Enqueue | None = None,
    ) -> None:
        """``first_us``: how long a launch takes, measured on the first ``launched`` copies.

        ``warm`` launches on a copy that is none of theirs; None: there is no warm-up.
        """
        super().__init__(launches, launched)
        self._warm = warm
        # one copy is left after every launch, which would find its own work done; but reading the clock takes as long
        # as a short launch
        self._round = len(launches) if len(launches) > 1 or first_us >= _CLOCK_US else _FEWEST_CALLS
        self._count = max(1, min(_MOST_CALLS, math.ceil(protocol.sample_us / max(first_us, 0.1))))
        self.in_a_row = min(self._count, self._round)

    def take(self, count: int) -> list[Sample]:
        with no_collection():
            return [self._timed(self._count, self.between) for _ in range(count)]

    def replay(self) -> None:
        with no_collection():
            self._timed(max(self._count, len(self._launches)), Nothing())

    def _timed(self, count: int, between: Between) -> Sample:
        elapsed, left = 0, count
        lost = preemptions()
        while left:
            places = self._turn(min(left, self._round))
            turn = [self._launches[place] for place in places]
            between(places)
            between.ready()
            if self._warm is not None and count >= _FEWEST_CALLS:
                self._warm()
            start = perf_counter_ns()
            for launch in turn:
                launch()
            elapsed += perf_counter_ns() - start
            between.look()
            left -= len(turn)
            if self._warm is not None and len(turn) == len(self._launches):
                # were one copy the last of every round, the warm-up would complete what its launch had left undone
                self.place += 1
        return Sample(elapsed / 1e3 / count, preemptions() == lost)


def rotation(working_set: int, protocol: TimingProtocol) -> int:
    """The number of copies that evict each other: between two launches on one copy, twice the cache is used."""
    if working_set >= _EVICTING * protocol.cache_bytes:
        return 1
    return 1 + math.ceil(2 * protocol.cache_bytes / max(working_set, 1))


def copies_of(working_set: int, protocol: TimingProtocol) -> int:
    """How many copies launches go round: enough to be cold, at most ``max_copies``; as many as stay in a hot cache.

    There is more than one in a hot cache, too: a launch that comes right after another on the same tensors would find
    its work done.
    """
    if protocol.regime == "hot":
        return min(protocol.max_copies, _hot(working_set, protocol))
    return min(protocol.max_copies, rotation(working_set, protocol))


def _hot(working_set: int, protocol: TimingProtocol) -> int:
    return max(1, int(_HOT_SHARES[protocol.clock] * protocol.cache_bytes / max(working_set, 1)))


def has_warm_copy(working_set: int, protocol: TimingProtocol) -> bool:
    """Whether a copy more is for launches that warm up: on a CPU, unless launches on so many bytes take long anyway."""
    return protocol.clock == "perf_counter" and working_set <= _WARMED_SHARE * protocol.cache_bytes


def copies_at_hand(working_set: int, protocol: TimingProtocol, memory_bytes: int) -> int:
    """How many copies there are for launches: on a GPU more than ``copies_of`` where a sample comes to these twice.

    What a launch finds done by an earlier one of its sample it could leave out, and all outputs would be right.
    """
    cold = copies_of(working_set, protocol)
    if protocol.clock != "cuda_event":
        return cold
    if protocol.regime == "hot":
        return min(_MOST_COPIES, _hot(working_set, protocol))
    if needs_flush(working_set, protocol):
        return 2 * cold
    return max(cold, min(_MOST_COPIES, int(_ROOM_SHARE * memory_bytes / max(working_set, 1))))


def needs_flush(working_set: int, protocol: TimingProtocol) -> bool:
    """Whether the copies are too small to make each other cold."""
    return protocol.flush and rotation(working_set, protocol) > protocol.max_copies


@contextmanager
def no_collection() -> Iterator[None]:
    """Run the block without Python's garbage collector, which may take tens of ms and free device memory."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

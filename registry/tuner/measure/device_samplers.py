"""Samples of device time: events around work that the device finds waiting, so that no host time is among it."""

from __future__ import annotations

import collections
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from time import perf_counter_ns
from typing import Any

import torch

from ...device import Device
from .capture import Graph
from .samplers import Enqueue, LaunchSampler, Sample, Sampler, no_collection

# bound at import, so that a candidate's later patch is not called
_Event: Any = torch.cuda.Event
_record: Any = torch.cuda.Event.record
_query: Any = torch.cuda.Event.query
_wait: Any = torch.cuda.Event.synchronize
_elapsed_ms: Any = torch.cuda.Event.elapsed_time
_set_stream: Any = torch.cuda.set_stream
_sleep: Any = torch.cuda._sleep
_sum = torch.sum

_CYCLES_PER_US = 2_000
_HEAD_START_US = 40.0
"""The host's time for recording an event and launching a graph, with room to spare."""
_LONGEST_HEAD_START_US = 20_000.0
_LATE_AT_MOST = 6
_LEAST_US = 0.01
"""The least time of a launch after the flush is subtracted: ratios need a positive number."""
_FLUSH_COLUMNS = 1024
"""A sum over many short rows is one kernel; one over everything allocates memory for a second step."""
_PART = 3
"""One sample in so many is the last of its part."""
_BASELINES = 31
_FIRST_BASELINES = 7
_BASELINE_LASTS_NS = 20_000_000


class DeviceClock:
    """Times work between two events. A sleeping kernel ahead of it gives the host a head start.

    A sample is clean if the device had not reached the first event when the host had enqueued the last: then it never
    waited for the host. The head start doubles until that is so; work that waits for the device itself, which no head
    start can hide, is timed with the host's time in it after a few tries (``waits``).
    """

    def __init__(self, head_start_us: float = _HEAD_START_US) -> None:
        self.waits = False
        self._head_start_us = min(head_start_us, _LONGEST_HEAD_START_US)
        self._late = 0
        self._stream = torch.cuda.current_stream()
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def time(
        self,
        works: Sequence[Callable[[], object]],
        between: Callable[[int], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> list[Sample]:
        """The µs that each piece of work takes, queued one right after the other behind one head start.

        ``between(number)`` enqueues what comes before that piece of work, ``after`` what comes after the last; neither
        is timed.
        """
        while len(self._pairs) < len(works):
            self._pairs.append((_Event(enable_timing=True), _Event(enable_timing=True)))
        pairs, stream = self._pairs[: len(works)], self._stream
        ahead = []
        with no_collection():
            _set_stream(stream)
            if between is not None:
                between(0)
            if not self.waits:
                _sleep(int(self._head_start_us * _CYCLES_PER_US))
            for number, ((start, end), work) in enumerate(zip(pairs, works, strict=True)):
                if number and between is not None:
                    between(number)
                _record(start, stream)
                work()
                _record(end, stream)
                ahead.append(not _query(start))
            if after is not None:
                after()
        _wait(pairs[-1][1])
        self._learn(ahead)
        times = [float(_elapsed_ms(start, end)) * 1e3 for start, end in pairs]
        return [Sample(us, self.waits or clean) for us, clean in zip(times, ahead, strict=True)]

    def _learn(self, ahead: Sequence[bool]) -> None:
        self._late = 0 if ahead[0] else self._late + 1
        if not all(ahead):
            self._head_start_us = min(2 * self._head_start_us, _LONGEST_HEAD_START_US)
        self.waits = self.waits or self._late >= _LATE_AT_MOST


class Baseline:
    """The time of the flush alone between two events, to be subtracted: the median of the latest few.

    One more is taken where the latest is older than 20 ms. The flush is the same read of memory whatever is timed, and
    the clock of the memory changes in seconds, so that a time speaks for the samples of the next ms as well; one for
    each take was 8% of a worker's time.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._clock = DeviceClock()
        self._times: collections.deque[float] = collections.deque(maxlen=_BASELINES)
        self._taken_ns = 0

    def us(self) -> float:
        """The median of the latest times, in µs; 0.0 as long as no time was clean."""
        if not self._times or perf_counter_ns() - self._taken_ns > _BASELINE_LASTS_NS:
            self._take(1 if self._times else _FIRST_BASELINES)
        return statistics.median(self._times) if self._times else 0.0

    def _take(self, count: int) -> None:
        for _ in range(count):
            self._times += [sample.us for sample in self._clock.time([self._flush]) if sample.clean]
        self._taken_ns = perf_counter_ns()


class Flush:
    """Reads twice the size of the cache, so that it holds nothing else.

    Two buffers are read alternately: each read takes equally long, since the other buffer has evicted this one.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        rows = -(-nbytes // (4 * _FLUSH_COLUMNS))
        sink = torch.empty(rows, device=device)
        buffers = [torch.zeros((rows, _FLUSH_COLUMNS), device=device) for _ in range(2)]
        self.reads = [partial(_sum, buffer, 1, out=sink) for buffer in buffers]

    def __call__(self) -> None:
        for read in self.reads:
            read()


class Flushes:
    """A device's flush with its own time, launched or in a graph; all samplers of a process share them."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.flush = Flush(nbytes, device)
        self.launched = Baseline(self.flush)
        self._device = device

    @cached_property
    def captured(self) -> Baseline:
        """The time in a graph. Raises CaptureError."""
        self.flush()
        self._graph = Graph(self.flush, self._device)
        return Baseline(self._graph.replay)


@lru_cache(maxsize=4)
def flushes_of(nbytes: int, device: Device) -> Flushes:
    """The flush of a device that reads ``nbytes``, made once a process."""
    return Flushes(nbytes, device.torch)


class GraphSampler(Sampler):
    """Replays of a CUDA graph of launches that go round the copies: no host time, every launch finds its copy cold.

    No output is late: work that is captured on another stream is joined, or the capture fails.
    """

    def __init__(self, turn: Sequence[Enqueue], device: Device, flushes: Flushes | None = None) -> None:
        """``flushes`` come before the turn, and are subtracted. Raises CaptureError."""
        # the graph holds addresses: the tensors of the launches must live as long as the graph
        self._turn = LaunchRound(turn, flushes.flush if flushes else None, flushes.captured if flushes else None)
        self.in_a_row = self._turn.launches
        self._clock = DeviceClock()
        self._graph = Graph(self._turn, device.torch)

    @property
    def how(self) -> str:
        return f"graph{self._turn.suffix}"

    def take(self, count: int) -> list[Sample]:
        copies = range(self._turn.copies)
        taken: list[Sample] = []
        for size in parts_of(count, alone=self.between.alone):
            between = partial(self._before, copies, size)
            taken += self._clock.time([self._graph.replay] * size, between)
        return self._turn.per_launch(taken)

    def _before(self, copies: Sequence[int], size: int, number: int) -> None:
        self.between(copies, last=number == size - 1)

    def replay(self) -> None:
        self._clock.time([self._graph.replay])

    def close(self) -> None:
        self._graph.close()


class BacklogSampler(Sampler):
    """Launches queued one by one, each turn over the copies behind a head start of its own."""

    def __init__(
        self, turn: Sequence[Enqueue], host_us: float, flushes: Flushes | None = None, refused: str = ""
    ) -> None:
        """``host_us``: the host's time for one launch."""
        self.refused = refused
        self._turn = LaunchRound(turn, flushes.flush if flushes else None, flushes.launched if flushes else None)
        self.in_a_row = self._turn.launches
        self._clock = DeviceClock(_HEAD_START_US + 2 * host_us * self._turn.launches)

    @property
    def how(self) -> str:
        """``host`` when launches wait for the device themselves, so that the host's time is in theirs."""
        return "host" if self._clock.waits else f"backlog{self._turn.suffix}"

    def take(self, count: int) -> list[Sample]:
        copies = range(self._turn.copies)
        return self._turn.per_launch(
            [self._clock.time([self._turn], lambda _: self._before(copies), self.between.look)[0] for _ in range(count)]
        )

    def _before(self, copies: Sequence[int]) -> None:
        self.between(copies)
        self.between.ready()

    def replay(self) -> None:
        self._clock.time([self._turn])


class LaunchRound:
    """The launches of one sample, after a flush where they need one, whose time is subtracted.

    Each read of a flush has its own part of the launches behind it.
    """

    def __init__(self, turn: Sequence[Enqueue], flush: Flush | None, baseline: Baseline | None) -> None:
        reads: Sequence[Callable[[], object]] = flush.reads if flush else [_nothing]
        size = -(-len(turn) // len(reads))
        self._parts = [(read, turn[size * place : size * (place + 1)]) for place, read in enumerate(reads)]
        self._baseline = baseline
        self.launches = len(turn)
        self.copies = len(set(turn))
        self.suffix = "+flush" if flush else ""

    def __call__(self) -> None:
        for read, launches in self._parts:
            read()
            for launch in launches:
                launch()

    def per_launch(self, samples: Sequence[Sample]) -> list[Sample]:
        """Samples of one launch, given samples of all launches of the turn."""
        spent_us = self._baseline.us() if self._baseline else 0.0
        return [Sample(max((us - spent_us) / self.launches, _LEAST_US), clean) for us, clean in samples]


class SingleSampler(LaunchSampler):
    """Long launches: each is a sample, the next is queued while it runs."""

    def __init__(self, launches: Sequence[Enqueue], host_us: float, launched: int = 0) -> None:
        """``host_us``: the host's time for one launch, measured on the first ``launched`` copies."""
        super().__init__(launches, launched)
        self._clock = DeviceClock(_HEAD_START_US + 2 * host_us)

    @property
    def how(self) -> str:
        """ "host" when launches wait for the device themselves."""
        return "host" if self._clock.waits else "single"

    def warm_up(self, us: float) -> None:
        """Do nothing: the first look has warmed up launches as long as these."""

    def take(self, count: int) -> list[Sample]:
        taken: list[Sample] = []
        for size in parts_of(count, alone=self.between.alone):
            places = self._turn(size)
            works = [self._launches[place] for place in places]
            taken += self._clock.time(works, partial(self._before, places), self.between.look)
        return taken

    def _before(self, places: Sequence[int], number: int) -> None:
        self.between([places[number]], last=number == len(places) - 1)
        self.between.ready()

    def replay(self) -> None:
        self._clock.time(self._launches)


class HostTime:
    """A launch, and the µs that the host last took to enqueue it."""

    def __init__(self, launch: Enqueue) -> None:
        self._launch = launch
        self.us = 0.0

    def __call__(self) -> None:
        began = perf_counter_ns()
        self._launch()
        self.us = (perf_counter_ns() - began) / 1e3


def parts_of(count: int, *, alone: bool = False) -> Iterator[int]:
    """Sizes of parts in which so many samples are queued, drawn at random: each sample is the last with equal chances.

    ``alone``: each part is one sample.

    Only the last of a part may be judged. A kernel may tell where a part begins, by the longer pause, and could leave
    out work in the samples before the last one if it knew how many there are.
    """
    while count > 0:
        size = 1
        while not alone and size < count and secrets.randbelow(_PART):
            size += 1
        yield size
        count -= size


def _nothing() -> None:
    """The flush where none is needed: launches on the rotating copies evict each other's data."""

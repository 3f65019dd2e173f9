"""One sample of a candidate's time: what is launched between two clock readings, and on which memory."""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from ..device import Device
from .protocol import Protocol

Enqueue = Callable[[], object]
"""Launch the candidate once on one of the rotating buffers."""

_SLEEP_CYCLES_PER_US = 2_000
_MAX_GRAPH_LAUNCHES = 512
_FLUSHED_LAUNCHES = 6
_HEAD_START_US = 100


class Sampler(ABC):
    """``sample()`` is the time of one launch in µs, averaged over as many launches as the protocol wants."""

    how: str

    @abstractmethod
    def sample(self) -> float:
        """Take one sample; the device is idle afterwards."""

    def replay(self) -> None:
        """Launch on every copy at least once, exactly as samples do."""
        self.sample()

    def close(self) -> None:  # noqa: B027 - only graphs hold something
        """Free what the sampler holds on the device."""


def sampler_for(
    launches: Sequence[Enqueue], *, capturable: bool, working_set: int, protocol: Protocol, device: Device
) -> Sampler:
    """The sampler that the protocol asks for. ``launches``: one per rotating copy of a ``working_set`` of bytes."""
    if device.type != "cuda":
        return ClockSampler(launches, protocol)
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    if working_set < protocol.rotate_above:
        return FlushSampler(launches, protocol, device)
    count = _group(launches, protocol)
    if capturable:
        try:
            return GraphSampler(launches, count)
        except RuntimeError as fault:
            if "captur" not in str(fault):
                raise
    return BacklogSampler(launches, count)


def copies_of(working_set: int, protocol: Protocol) -> int:
    """How many rotating copies make a working set cold: together twice the cache; one when it is far larger."""
    if working_set >= 8 * protocol.cache_bytes:
        return 1
    if working_set < protocol.rotate_above:
        return 2
    return min(protocol.max_copies, 1 + math.ceil(2 * protocol.cache_bytes / max(working_set, 1)))


class ClockSampler(Sampler):
    """perf_counter_ns around calls that return when they are done (CPU)."""

    how = "perf_counter"

    def __init__(self, launches: Sequence[Enqueue], protocol: Protocol) -> None:
        self._launches = launches
        self._next = 0
        once = statistics.median(self._take(1) for _ in range(3))
        self._count = max(1, min(1000, math.ceil(protocol.sample_us / max(once, 0.1))))

    def sample(self) -> float:
        return self._take(self._count) / self._count

    def replay(self) -> None:
        self._take(max(self._count, len(self._launches)))

    def _take(self, count: int) -> float:
        turn = [self._launches[(self._next + place) % len(self._launches)] for place in range(count)]
        self._next += count
        start = time.perf_counter_ns()
        for launch in turn:
            launch()
        return (time.perf_counter_ns() - start) / 1e3


class GraphSampler(Sampler):
    """Replay of a CUDA graph of launches that go round the copies: no host time, every launch finds its copy cold."""

    how = "graph"

    def __init__(self, launches: Sequence[Enqueue], count: int) -> None:
        # the graph holds addresses: what the launches refer to must live as long as it does
        self._launches = launches
        self._count = count
        self._graph = torch.cuda.CUDAGraph()
        self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._capture()
        self._graph.replay()
        torch.cuda.synchronize()

    def sample(self) -> float:
        start, end = self._events
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / self._count

    def close(self) -> None:
        self._graph.reset()

    def _capture(self) -> None:
        # not torch.cuda.graph: it collects garbage and empties the allocator's cache, 0.1 s each time
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                for place in range(self._count):
                    self._launches[place % len(self._launches)]()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)


class BacklogSampler(Sampler):
    """Launches queued behind a sleeping kernel, so that the device never waits for the host."""

    how = "backlog"

    def __init__(self, launches: Sequence[Enqueue], count: int) -> None:
        self._turn = [launches[place % len(launches)] for place in range(count)]
        self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start = time.perf_counter_ns()
        for launch in self._turn:
            launch()
        self._host_us = (time.perf_counter_ns() - start) / 1e3
        torch.cuda.synchronize()

    def sample(self) -> float:
        start, end = self._events
        torch.cuda._sleep(int((2 * self._host_us + 50) * _SLEEP_CYCLES_PER_US))
        start.record()
        for launch in self._turn:
            launch()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / len(self._turn)


class FlushSampler(Sampler):
    """For a working set too small to rotate: reading twice the cache evicts it, and hides the host's time."""

    how = "flush"

    def __init__(self, launches: Sequence[Enqueue], protocol: Protocol, device: Device) -> None:
        self._launches = launches
        self._buffer = _flush_buffer(2 * protocol.cache_bytes, device.torch)
        self._sink = torch.empty((), device=device.torch)
        self._events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(_FLUSHED_LAUNCHES)
        ]

    def sample(self) -> float:
        # a head start: from here on the flushes keep the device busier than the host
        torch.cuda._sleep(_HEAD_START_US * _SLEEP_CYCLES_PER_US)
        for place, (start, end) in enumerate(self._events):
            torch.sum(self._buffer, 0, out=self._sink)
            start.record()
            self._launches[place % len(self._launches)]()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(float(start.elapsed_time(end)) * 1e3 for start, end in self._events)


_flush_buffers: dict[tuple[int, torch.device], torch.Tensor] = {}


def _flush_buffer(size: int, device: torch.device) -> torch.Tensor:
    key = (size, device)
    if key not in _flush_buffers:
        _flush_buffers[key] = torch.zeros(size // 4, device=device)
    return _flush_buffers[key]


def _group(launches: Sequence[Enqueue], protocol: Protocol) -> int:
    """Launches a sample: whole rounds over the copies that last at least ``sample_us``."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(100 * _SLEEP_CYCLES_PER_US)
    start.record()
    for launch in launches:
        launch()
    end.record()
    end.synchronize()
    round_us = max(float(start.elapsed_time(end)) * 1e3, 0.1)
    rounds = max(1, math.ceil(protocol.sample_us / round_us))
    return min(len(launches) * rounds, max(len(launches), _MAX_GRAPH_LAUNCHES))

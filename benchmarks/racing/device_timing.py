"""Timing code for scripts that check the tuner: nothing of registry.tuner is used here.

A contestant is captured into a CUDA graph that calls it once on each of many copies of the inputs, so that every call
finds its inputs in memory and not in L2. Copies that together are not larger than L2 follow a read that empties it,
whose own time, measured in the same round, is subtracted. Contestants take turns, in a new order every round.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from registry import Problem

Call = Callable[..., Any]
Maker = Callable[[Problem, tuple[Any, ...]], Call]
"""Makes a call of another project's kernel for a problem and the op's values."""
"""Takes the op's values in order, returns the output."""

_MOST_COPIES = 64
_FLUSH = "the flush alone"


class Race:
    """Contestants on one problem. ``faults`` says why some do not take part.

    Each is called on every copy of the inputs before it is captured; ``before``: other calls to make then instead, by
    contestant.
    """

    def __init__(
        self,
        contestants: Mapping[str, Call],
        values: tuple[Any, ...],
        working_set: int,
        before: Mapping[str, Call] | None = None,
    ) -> None:
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.copies = [_copy(values) for _ in range(min(_MOST_COPIES, 2 + 3 * cache // max(working_set, 1)))]
        self.flushed = working_set * len(self.copies) < 3 * cache
        self._buffer = torch.zeros(3 * cache // 4, device="cuda") if self.flushed else None
        self.faults: dict[str, str] = {}
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._kept: list[Any] = []
        for name, call in contestants.items():
            try:
                self._graphs[name] = self._capture(call, (before or {}).get(name, call))
            except Exception as fault:  # a peer that cannot run this problem is a row that says so
                self.faults[name] = f"{type(fault).__name__}: {fault}".splitlines()[0][:160]
                torch.cuda.synchronize()
        if self.flushed:
            self._graphs[_FLUSH] = self._capture(None)

    def times(self, rounds: int, seed: int = 0) -> dict[str, list[float]]:
        """Contestant -> µs a call, one a round; rounds pair up by index."""
        order = list(self._graphs)
        shuffle = random.Random(seed)
        taken: dict[str, list[float]] = {name: [] for name in order}
        for _ in range(3):
            self._round(order)
        for _ in range(rounds):
            shuffle.shuffle(order)
            for name, us in self._round(order).items():
                taken[name].append(us)
        flush = statistics.median(taken.pop(_FLUSH)) if self.flushed else 0.0
        return {name: [(us - flush) / len(self.copies) for us in times] for name, times in taken.items()}

    def close(self) -> None:
        """Free graphs and copies."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._kept.clear()
        self.copies.clear()

    def _round(self, order: Sequence[str]) -> dict[str, float]:
        return {name: self._replay(self._graphs[name]) for name in order}

    @staticmethod
    def _replay(graph: torch.cuda.CUDAGraph) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()  # the timed one queues behind it, so that the host's time is hidden
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def _capture(self, call: Call | None, before: Call | None = None) -> torch.cuda.CUDAGraph:
        if before is not None:
            for values in self.copies:  # every one: a weight is prepared at its first call
                before(*values)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if self._buffer is not None:
                self._kept.append(self._buffer.sum())
            if call is not None:
                self._kept.append([call(*values) for values in self.copies])
        return graph


def ratio(times: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Median over the rounds of ``one``'s time over ``other``'s."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def _copy(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)

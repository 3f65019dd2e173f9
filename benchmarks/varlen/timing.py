"""Times of calls that take turns: of a captured graph where a call can be captured, else of the call as it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from benchmarks.racing.device_timing import Call

_WARM = 3


class VarlenRace:
    """Contestants on the values of one problem. ``faults`` says why some do not take part.

    ``eager`` names those that cannot be captured, e.g. as they read lengths: their time has the host's, as a user has
    it. ``waiting`` are those of which that is known: none of them is captured, nor is anything on a CPU.
    """

    def __init__(
        self,
        contestants: Mapping[str, Call],
        values: tuple[Any, ...],
        right: torch.Tensor,
        waiting: Collection[str] = (),
    ) -> None:
        self._device = values[0].device
        self.faults: dict[str, str] = {}
        self.eager: set[str] = set(waiting)
        self._runs: dict[str, Callable[[], Any]] = {}
        self._kept: list[Any] = []
        self._flush = self._flushing()
        for name, call in contestants.items():
            try:
                self._check(call(*values), right)
                self._runs[name] = self._run(name, call, values)
            except Exception as fault:  # a peer that cannot run this problem is a row that says so
                self.faults[name] = f"{type(fault).__name__}: {fault}".splitlines()[0][:160]
                self._wait()

    def times(self, rounds: int, seed: int = 0) -> dict[str, list[float]]:
        """Contestant -> µs a call, one a round; rounds pair up by index. Each round has an order of its own."""
        order, shuffle = list(self._runs), random.Random(seed)
        taken: dict[str, list[float]] = {name: [] for name in order}
        for turn in range(_WARM + rounds):
            shuffle.shuffle(order)
            for name in order:
                us = self._timed(self._runs[name])
                if turn >= _WARM:
                    taken[name].append(us)
        return taken

    def close(self) -> None:
        """Free graphs and outputs."""
        self._runs.clear()
        self._kept.clear()

    def _check(self, found: Any, right: torch.Tensor) -> None:
        """Raise ValueError unless an output is about that of torch's attention: what computes something else is out."""
        out = found[0] if isinstance(found, tuple) else found
        error = float((out.float() - right.float()).abs().max())
        if not error <= 0.05:
            raise ValueError(f"its output differs by {error:.3g} from torch's attention")

    def _run(self, name: str, call: Call, values: tuple[Any, ...]) -> Callable[[], Any]:
        def as_it_is() -> Any:
            return call(*values)

        as_it_is()
        if self._device.type != "cuda" or name in self.eager:
            return as_it_is
        self._wait()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._kept.append(call(*values))
        except Exception:
            self._wait()
            self.eager.add(name)
            return as_it_is
        self._kept.append(graph)
        return graph.replay

    def _flushing(self) -> Callable[[], Any]:
        """A write that is larger than L2, so that a call finds its inputs in memory."""
        if self._device.type != "cuda":
            return lambda: None
        cache = torch.cuda.get_device_properties(self._device).L2_cache_size
        buffer = torch.empty(2 * cache, dtype=torch.uint8, device=self._device)
        return buffer.zero_

    def _timed(self, run: Callable[[], Any]) -> float:
        if self._device.type != "cuda":
            begun = time.perf_counter_ns()
            run()
            return (time.perf_counter_ns() - begun) / 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

"""What a stopped sandbox may still do on a GPU: run a kernel that was launched before, and hold memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns

import torch

from .program import SandboxedProgram

_CYCLES = 4_000_000
"""About 2 ms of a kernel that does nothing: the turn of one process, where two share a GPU, is as long."""
_TRIES = 3
_LONGER = 1.5
"""Times its time alone: where another process's kernel runs, the GPU takes turns, and a kernel lasts twice as long."""
_GIB = 1 << 30

# bound at import
_sleep: Callable[[int], None] = torch.cuda._sleep


class GpuWatch:
    """Readings of a GPU from before a sandbox was there, with which later ones are compared."""

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._slept_us = statistics.median(self._sleep_us() for _ in range(2 * _TRIES))
        self._free_bytes, _ = torch.cuda.mem_get_info(device)

    def check(self, program: SandboxedProgram, own_bytes: int) -> None:
        """Refuse a stopped program that uses the GPU, or holds too much of its memory.

        ``own_bytes``: taken by this process since. Raises EntrantError.
        """
        if min(self._sleep_us() for _ in range(_TRIES)) > _LONGER * self._slept_us:
            program.refuse("error", "a kernel of it runs on the GPU while its processes are stopped")
        free, _ = torch.cuda.mem_get_info(self._device)
        if (held := self._free_bytes - free - own_bytes) > self._most_bytes:
            program.refuse(
                "out_of_memory",
                f"it holds {held / _GIB:.3g} GiB of the GPU's memory, allowed are {self._most_bytes / _GIB:.3g}",
            )

    def _sleep_us(self) -> float:
        torch.cuda.synchronize(self._device)
        began = perf_counter_ns()
        with torch.cuda.device(self._device):
            _sleep(_CYCLES)
        torch.cuda.synchronize(self._device)
        return (perf_counter_ns() - began) / 1e3

"""What a stopped sandbox may still do on a GPU: run a kernel that was launched before, and hold memory."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import torch

from .program import SandboxedProgram

_CYCLES = 4_000_000
"""About 2 ms of a kernel that does nothing: the turn of one process, where two share a GPU, is as long."""
_FIRST_TRIES = 30
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
        # an idle GPU's clock rises meanwhile
        self._slept_us = min(self._sleep_us() for _ in range(_FIRST_TRIES))
        self._foreign_bytes = self._held_by_others()

    def check_idle(self, program: SandboxedProgram) -> None:
        """Refuse a stopped program that uses the GPU. Raises EntrantError."""
        if min(self._sleep_us() for _ in range(_TRIES)) > _LONGER * self._slept_us:
            program.refuse("error", "a kernel of it runs on the GPU while its processes are stopped")

    def check_memory(self, program: SandboxedProgram, shared_bytes: int) -> None:
        """Refuse a program that holds too much of the GPU's memory. Raises EntrantError.

        ``shared_bytes``: taken by this process, beside what torch's allocator tells.
        """
        if (held := self._held_by_others() - self._foreign_bytes - shared_bytes) > self._most_bytes:
            program.refuse(
                "out_of_memory",
                f"it holds {held / _GIB:.3g} GiB of the GPU's memory, allowed are {self._most_bytes / _GIB:.3g}",
            )

    def _held_by_others(self) -> int:
        """Bytes of the GPU's memory that are taken, but not by tensors of this process."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - torch.cuda.memory_reserved(self._device)

    def _sleep_us(self) -> float:
        torch.cuda.synchronize(self._device)
        began = perf_counter_ns()
        with torch.cuda.device(self._device):
            _sleep(_CYCLES)
        torch.cuda.synchronize(self._device)
        return (perf_counter_ns() - began) / 1e3

"""A sandbox with what all calls in it need: its program, its limits, and the memory that is shared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..contract import Op
from ..device import Device
from .gpu_watch import GpuWatch
from .limits import SandboxLimits
from .memory.opening import made
from .memory.shared_memory import SharedMemory
from .program import SandboxedProgram


@dataclass
class SharedSandbox:
    """A running sandbox. ``watch``: observes the sandbox's GPU, None on a CPU."""

    program: SandboxedProgram
    op: Op
    device: Device
    limits: SandboxLimits
    watch: GpuWatch | None
    _memories: list[SharedMemory] = field(default_factory=list)
    _spare: int = -1
    """The number of the memory that calls of other problems share, one after another; -1 before there are any."""
    _now: int = 0
    """The number of the calls that the next request is about."""

    @property
    def nbytes(self) -> int:
        """Bytes of all memory that is shared."""
        return sum(each.bytes.nbytes for each in self._memories)

    def ask(self, message: Mapping[str, Any], which: int, seconds: float) -> dict[str, str | bool]:
        """The answer to a message about the calls with that number."""
        found = self.program.ask({**message, "which": which}, seconds)
        self._now = which
        return found

    def choose(self, which: int) -> None:
        """Let the next request be about the calls with that number."""
        if which != self._now:
            self.ask({"do": "choose"}, which, self.limits.run_s)

    def new_memory(self, nbytes: int) -> tuple[int, torch.Tensor]:
        """New shared memory: its number, and its bytes."""
        one = made(nbytes, self.device.torch)
        self._memories.append(one)
        self.program.ask({"do": "memory", "bytes": nbytes}, self.limits.load_s, one.descriptor)
        return len(self._memories) - 1, one.bytes

    def spare_memory(self, nbytes: int) -> tuple[int, torch.Tensor]:
        """Shared memory for calls of which none is made again once others have it: its number, and its bytes."""
        held = self._memories[self._spare].bytes if self._spare >= 0 else None
        if held is None or held.nbytes < nbytes:
            # twice as much: the next may need a little more
            self._spare, held = self.new_memory(nbytes if held is None else max(nbytes, 2 * held.nbytes))
        return self._spare, held

    def settle(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device.torch)

    def close(self) -> None:
        """End the program and free the memories."""
        self.program.close()
        for one in self._memories:
            one.close()

"""Runs of a plan that is queued before its inputs, outputs and scratch are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ...device import Device
from .late_inputs import LateInputs, late_inputs

# bound at import, so that a candidate's later patch is not called
_sleep: Callable[[int], None] = torch.cuda._sleep
_new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event

_WAIT_CYCLES = 2_000_000
"""About 1 ms, in which the host launches two kernels."""
_LONGEST = 8
"""The longest wait over the first: about 8 ms for a host that is busy."""


class LateRuns:
    """Lets inputs, outputs and scratch of one run after the other arrive late, behind a wait on the current stream.

    A run whose launch is queued after the wait is ``missed``: its memory may have arrived before it began. The object
    must live until the stream has done all that was queued.
    """

    def __init__(self, device: Device, inputs: Iterable[torch.Tensor]) -> None:
        self.missed = False
        """Whether the latest run was queued when its wait was over; False where nothing arrives late."""
        self._device = device
        self._inputs = tuple(inputs)
        self._cycles = _WAIT_CYCLES
        self._waited: torch.cuda.Event | None = None
        self._late: LateInputs | None = None

    def begin(self, outputs: Iterable[torch.Tensor]) -> None:
        """Queue the wait and the kernel that writes, for a run that comes next. ``outputs``: its scratch, too."""
        # one of an earlier run is freed here: torch's kernels, which let nobody begin early, used the stream since
        self._late = late_inputs(self._device, self._inputs, outputs)
        if self._late is None:
            return
        self._late.spoil()
        self._waited = _new_event()
        _sleep(self._cycles)
        # not behind the kernel that writes: the next launch would then begin when that has ended
        self._waited.record()
        self._late.arrive()

    def queued(self) -> None:
        """Note whether the run that has just been queued is ``missed``."""
        self.missed = self._waited is not None and self._waited.query()

    def wait_longer(self) -> bool:
        """Double the wait of the next run; False if it is the longest already, about 8 ms."""
        if self._cycles >= _LONGEST * _WAIT_CYCLES:
            return False
        self._cycles *= 2
        return True

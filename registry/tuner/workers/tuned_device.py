"""One device of a run: its worker, the worker that will replace it, and how busy they kept it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from ...device import Device
from ..events import DeviceUse
from ..jobs import DeviceJob
from ..measure import nvml
from .device_client import DeviceWorker

_LOOK_S = 0.1
"""The least time between two readings of the device's load."""
_SEEN_S = 1.0
"""The most time between two readings that count: the driver's figure covers the last 0.17 to 1 s."""


class TunedDevice:
    """A device with one worker at a time, which ``start`` makes; ``trials`` counts the candidates tried on it."""

    def __init__(self, device: Device, start: Callable[[TunedDevice], DeviceWorker]) -> None:
        self.device = device
        self.identity = nvml.identity_of(device)
        self.worker: DeviceWorker | None = None
        self.trials = 0
        self._start = start
        self._spare: DeviceWorker | None = None
        self._began = time.monotonic()
        self._busy: list[tuple[float, float]] = []
        self._gpu = nvml.gpu_of(device)
        self._loads: list[tuple[float, float]] = []
        """Readings of the device: the time of each, and the share of the time before it in which a kernel ran."""

    # its worker

    def start(self) -> None:
        """Start a worker, unless there is one."""
        self.worker = self.worker or self._start(self)

    def replace(self, *, last: bool) -> None:
        """Replace the worker by a fresh process.

        On a GPU a spare process starts meanwhile, unless this replacement is the ``last``; it touches the device only
        at its first job.
        """
        self.look()
        fresh, self._spare = self._spare or self._start(self), None
        if self.worker is not None:
            self.worker.close()
        self.worker = fresh
        if self.device.type == "cuda" and not last:
            self._spare = self._start(self)

    def dismiss(self) -> None:
        """Let the worker end meanwhile, for which a GPU's driver takes a second; ``replace`` starts another."""
        self.look()
        if self.worker is not None:
            self.worker.dismiss()

    def dismiss_all(self) -> None:
        """Let worker and spare end meanwhile; ``close`` has to follow."""
        for worker in self._workers:
            worker.dismiss()

    def close(self) -> None:
        """End worker and spare. May be called in any state."""
        for worker in self._workers:
            worker.close()
        self.worker = self._spare = None

    @property
    def lost(self) -> str:
        """Why no worker can be started on the device any more, "" as long as one can."""
        return next((worker.lost for worker in self._workers if worker.lost), "")

    def unanswered(self) -> list[DeviceJob]:
        """The jobs that the device's workers were given and have not answered."""
        return [job for worker in self._workers for job in worker.unanswered]

    @property
    def _workers(self) -> list[DeviceWorker]:
        return [worker for worker in (self.worker, self._spare) if worker is not None]

    # how busy it is

    def look(self) -> None:
        """Read the device's load, unless that was done just now."""
        now = time.monotonic()
        if self._gpu is None or (self._loads and now - self._loads[-1][0] < _LOOK_S):
            return
        share = self._gpu.utilisation()
        if share is not None:
            self._loads.append((now, share / 100))

    def was_busy(self, begin: float, end: float) -> None:
        """The worker had a job from ``begin`` to ``end``, times of ``time.monotonic``."""
        if self._busy and begin - self._busy[-1][1] < 0.01:
            begin = self._busy.pop()[0]
        self._busy.append((begin, end))

    def use(self, after: float) -> DeviceUse:
        """How busy the device was kept; shares leave out the first ``after`` seconds."""
        seconds = sum(end - begin for begin, end in self._busy)
        shares = self.worker_share(after), self.kernel_share(after)
        return DeviceUse(self.device.label, self.identity, self.trials, seconds, *shares)

    def worker_share(self, after: float) -> float | None:
        """The part of the time, from ``after`` seconds on, in which the worker had a job; None before that."""
        since = self._began + after
        elapsed = time.monotonic() - since
        if elapsed <= 0:
            return None
        return sum(max(0.0, end - max(begin, since)) for begin, end in self._busy) / elapsed

    def kernel_share(self, after: float) -> float | None:
        """The part of the time, from ``after`` seconds on, in which a kernel ran; None where the driver does not tell.

        The driver tells of the last second at most: longer times between two readings count neither way.
        """
        later = [(at, share) for at, share in self._loads if at >= self._began + after]
        seen = [(at - before, share) for (before, _), (at, share) in pairwise(later) if at - before <= _SEEN_S]
        elapsed = sum(seconds for seconds, _ in seen)
        return sum(seconds * share for seconds, share in seen) / elapsed if elapsed else None

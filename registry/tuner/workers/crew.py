"""The processes of a run: the compilers, the worker on the device, and the worker that will replace it."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from ...device import Device
from ..jobs import Answer, BlockJob, Outcome, TrialJob
from ..limits import Limits
from ..measure import nvml
from ..processes.cores import compiling_cores
from .compile_pool import CompilePool
from .device_client import DeviceWorker

_TICK_S = 0.5
"""The longest wait for a child's answer."""
_LOOK_S = 0.1
"""The least time between two readings of the device's load."""
_SEEN_S = 1.0
"""The most time between two readings that count: the driver's figure covers the last 0.17 to 1 s."""
_MOST_COMPILERS = 16


class Crew:
    """Starts and ends the children, waits for answers, and adds up how long worker and device were busy.

    A crew must not be shared between threads.
    """

    def __init__(self, device: Device, files: Sequence[str], limits: Limits, note: Callable[[str], None]) -> None:
        self._device = device
        self._files = files
        self._limits = limits
        self._note = note
        self._selector = selectors.DefaultSelector()
        cores = compiling_cores(device)
        size = min(_MOST_COMPILERS, len(cores) or os.cpu_count() or 1)
        self.compiler = CompilePool(self._selector, size, files, limits, cores)
        self.worker: DeviceWorker | None = None
        self._trials: list[tuple[TrialJob, Outcome]] = []
        self.blocks: list[tuple[float, float]] = []
        """For every series of blocks: its seconds, and the seconds that the worker measured."""
        self._spare: DeviceWorker | None = None
        self._blocks: dict[int, Answer] = {}
        self._jobs = 0
        self._began = time.monotonic()
        self._busy: list[tuple[float, float]] = []
        self._gpu = nvml.gpu_of(device)
        self._loads: list[tuple[float, float]] = []
        """Times at which the device was read, and the part of the time before in which a kernel ran."""

    def next_job(self) -> int:
        """A number that no other job of the run has."""
        self._jobs += 1
        return self._jobs

    def start_worker(self) -> None:
        """Start a worker on the device, unless there is one."""
        self.worker = self.worker or self._new_worker()

    def replace_worker(self, *, last: bool) -> None:
        """Replace the worker by a fresh process.

        On a GPU the process after that starts meanwhile, unless this is the ``last``: it touches the device only at its
        first job.
        """
        self._look_at_device()
        fresh, self._spare = self._spare or self._new_worker(), None
        if self.worker is not None:
            self.worker.close()
        self.worker = fresh
        if self._device.type == "cuda" and not last:
            self._spare = self._new_worker()

    def dismiss_worker(self) -> None:
        """Let the worker end meanwhile, which a GPU's driver takes a second for; ``replace_worker`` has another."""
        self._look_at_device()
        if self.worker is not None:
            self.worker.dismiss()

    def submit(self, job: TrialJob) -> None:
        """Queue a trial on the worker."""
        assert self.worker is not None
        self.worker.submit(job)

    def run_blocks(self, jobs: Sequence[BlockJob]) -> list[Answer]:
        """Run finals blocks on the current worker, in order; a crash costs that block."""
        self._let_compilers_end()
        began = time.monotonic()
        # one at a time: a block's message is long, and a full pipe to a child that hangs would block this loop
        answers = [self.end_block(self.begin_block(job)) for job in jobs]
        at_work = sum(answer.seconds for answer in answers)
        self.blocks.append((round(time.monotonic() - began, 3), round(at_work, 3)))
        return answers

    def begin_block(self, job: BlockJob) -> int:
        """Queue a block on the worker; returns the number that ``end_block`` has to be given."""
        self._let_compilers_end()
        assert self.worker is not None
        numbered = replace(job, id=self.next_job())
        self.worker.submit(numbered)
        return numbered.id

    def end_block(self, number: int) -> Answer:
        """Wait for a block's answer."""
        while number not in self._blocks:
            self.wait()
        return self._blocks.pop(number)

    def wait(self) -> None:
        """Wait until a child has something to say, half a second at most; ``take_answered`` then has the answers."""
        began, at_work = time.monotonic(), self.worker is not None and not self.worker.idle
        for key, _ in self._selector.select(_TICK_S):
            key.data()
        self.compiler.check_deadlines()
        if self.worker is not None:
            self.worker.check_deadlines()
        if at_work:
            self._add_busy(began, time.monotonic())
        self._look_at_device()

    def take_answered(self) -> list[tuple[TrialJob, Outcome]]:
        """The trials that were answered since this was asked last."""
        answered, self._trials = self._trials, []
        return answered

    @property
    def seconds(self) -> float:
        """Seconds since the crew was made."""
        return time.monotonic() - self._began

    @property
    def worker_seconds(self) -> float:
        """Seconds in which the worker had a job."""
        return sum(end - begin for begin, end in self._busy)

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

    def close(self) -> None:
        """End every child. May be called in any state."""
        workers = [worker for worker in (self.worker, self._spare) if worker is not None]
        for worker in workers:
            # the driver frees the device while the other processes end
            worker.dismiss()
        self.compiler.close()
        for worker in workers:
            worker.close()
        self.worker = self._spare = None
        self._selector.close()

    def _let_compilers_end(self) -> None:
        """On a CPU, wait until nothing compiles: compilers and worker want the same cores."""
        while self._device.type == "cpu" and not self.compiler.idle:
            self.wait()

    def _new_worker(self) -> DeviceWorker:
        return DeviceWorker(self._selector, self._device, self._files, self._take, self._note, self._limits)

    def _take(self, job: TrialJob | BlockJob, answer: Answer) -> None:
        if isinstance(job, BlockJob):
            self._blocks[job.id] = answer
            return
        assert isinstance(answer, Outcome)
        self._trials.append((job, answer))

    def _look_at_device(self) -> None:
        now = time.monotonic()
        if self._gpu is None or (self._loads and now - self._loads[-1][0] < _LOOK_S):
            return
        share = self._gpu.utilisation()
        if share is not None:
            self._loads.append((now, share / 100))

    def _add_busy(self, begin: float, end: float) -> None:
        if self._busy and begin - self._busy[-1][1] < 0.01:
            begin = self._busy.pop()[0]
        self._busy.append((begin, end))

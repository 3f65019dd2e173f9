"""The run's client of the process that owns the device."""

from __future__ import annotations

import collections
import contextlib
import math
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ...device import Device
from ...errors import RegistryError
from ..jobs import BlockJob, DeviceJob, JobAnswer, Outcome, TimedBlock, to_json
from ..limits import Limits
from ..measure import nvml
from ..processes.channels import MOST_FAILED_STARTS, forget, send, settle
from ..processes.process import Child, Message
from .device_lock import holder_of
from .lost import NONSENSE, failed

_IN_FLIGHT = 3
"""Jobs that are sent ahead, so that the worker need not wait while the run stores a trial and chooses the next."""

_DEVICE_FREE_S = 5.0
_LONG_WAIT_S = 5.0
"""A wait of this length for the device is reported; a wait for another run's trial is shorter."""


@dataclass(frozen=True)
class WorkerProgram:
    """What a worker's process runs: ``python -m module`` with the device, and ``arguments`` instead of plugin files."""

    module: str = "registry.tuner.workers.worker_process"
    arguments: tuple[str, ...] | None = None


class DeviceWorker:
    """The one process on the device; when it hangs or dies it is replaced, and its current job is lost."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        device: Device,
        files: Sequence[str],
        answered: Callable[[DeviceJob, JobAnswer], None],
        note: Callable[[str], None],
        limits: Limits | None = None,
        program: WorkerProgram | None = None,
    ) -> None:
        self._program = program or WorkerProgram()
        self._selector = selector
        self._device = device
        self._files = files
        self._answered = answered
        self._note = note
        self._limits = limits or Limits()
        self._jobs: collections.deque[DeviceJob] = collections.deque()
        self._failed_starts = 0
        self.lost = ""
        """Why no process can be started on the device any more."""
        self._step = ""
        self._told = False
        """Whether the user knows of the present wait."""
        self._spawn()

    @property
    def wants_more(self) -> bool:
        """Whether another job would keep the device from waiting."""
        return len(self._jobs) < _IN_FLIGHT

    @property
    def idle(self) -> bool:
        """Whether the worker has no job."""
        return not self._jobs

    @property
    def unanswered(self) -> tuple[DeviceJob, ...]:
        """The jobs that the worker was given and has not answered."""
        return tuple(self._jobs)

    @property
    def pid(self) -> int:
        """The present process's id."""
        return self._child.pid

    @property
    def how(self) -> str:
        """The way in which the worker's process was started: ``forked`` or ``executed``."""
        return self._child.how

    def submit(self, job: DeviceJob) -> None:
        """Queue a job; its answer comes through ``answered``."""
        self._jobs.append(job)
        self._send()

    def check_deadlines(self) -> None:
        """Replace a worker whose step takes too long, or that has ended while its socket is still open."""
        if self.lost:
            return
        if time.monotonic() > self._deadline:
            forget(self._selector, self._child)
            self._replace(Outcome("timeout", f"{self._step} took more than {self._limits.seconds(self._step):g} s"))
        elif self._child.ended() is not None:
            self._readable(gone=True)
        elif self._step == "wait" and not self._told and time.monotonic() - self._entered > _LONG_WAIT_S:
            self._told = True
            self._note(_why_waiting(self._device))

    def dismiss(self) -> None:
        """Let the process end by itself; ``close`` has to follow."""
        forget(self._selector, self._child)
        self._child.dismiss()

    def close(self) -> None:
        """End the process, and wait until the device is free of it."""
        forget(self._selector, self._child)
        self._child.close()
        self._await_device()

    def _spawn(self) -> None:
        told = self._files if self._program.arguments is None else self._program.arguments
        arguments = [self._device.label, nvml.identity_of(self._device), *told]
        self._child = Child(self._program.module, arguments, memory_bytes=self._limits.memory)
        self._selector.register(self._child, selectors.EVENT_READ, self._readable)
        self._sent = 0
        self._ready = False
        self._busy = False
        self._enter("start")

    def _enter(self, step: str) -> None:
        if not self._busy or self._step == "wait":
            self._job_began = time.monotonic()
        self._told = self._told and self._step == step
        self._step, self._entered = step, time.monotonic()
        self._deadline = self._entered + self._limits.seconds(step)

    def _send(self) -> None:
        while self._ready and self._sent < min(len(self._jobs), _IN_FLIGHT):
            send(self._selector, self._child, to_json(self._jobs[self._sent]))
            self._sent += 1

    def _readable(self, *, gone: bool = False) -> None:
        child = self._child
        messages, there = child.receive()
        settle(self._selector, child)
        for message in messages:
            if self._child is not child:
                return  # an answer made the run replace or close this worker
            if not self._handle(message):
                forget(self._selector, child)
                self._replace(Outcome(NONSENSE.status, NONSENSE.message))
                return
        if self._child is child and (gone or not there):
            forget(self._selector, child)
            failure = failed(child.end())
            self._replace(Outcome(failure.status, failure.message))

    def _handle(self, message: Message) -> bool:
        """Take in a message; False for an invalid one, after which the process must go."""
        if message.get("ready"):
            self._ready, self._deadline = True, math.inf
            self._send()
            return True
        if not self._sent or message.get("id") != self._jobs[0].id:
            return False
        if "step" in message:
            self._enter(str(message["step"]))
            if message["step"] != "start":
                self._busy, self._failed_starts = True, 0
            return True
        try:
            if "timed" in message:
                answer: JobAnswer = msgspec.convert(message["timed"], TimedBlock)
            else:
                answer = msgspec.convert(message["outcome"], Outcome)
        except (KeyError, ValueError):
            return False
        if isinstance(answer, TimedBlock) is not isinstance(self._jobs[0], BlockJob):
            return False
        self._sent -= 1
        job = self._jobs.popleft()
        self._busy, self._deadline = False, math.inf
        self._send()
        self._answered(job, answer)
        return True

    def _replace(self, outcome: Outcome) -> None:
        self._child.stop()
        lost = self._jobs.popleft() if self._busy else None
        took = time.monotonic() - self._job_began
        if lost is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                self.lost = f"the worker on {self._device} does not start: {outcome.message}"
                raise RegistryError(self.lost)
        self._await_device()
        self._spawn()
        if lost is not None:
            self._note(f"the worker was replaced: {outcome.message.splitlines()[0]}")
            self._answered(lost, replace(outcome, seconds=took))

    def _await_device(self) -> None:
        """Wait until the driver has freed the memory of a process that has ended, before anything is measured."""
        gpu = nvml.gpu_of(self._device)
        if gpu is not None and not gpu.wait_until_gone(self._child.pid, _DEVICE_FREE_S):
            self._note(f"{self._device} still lists process {self._child.pid}, which has ended")


def _why_waiting(device: Device) -> str:
    """The message about a wait for the device: the process that holds it, and what to do if that is stopped."""
    holder = holder_of(device)
    if holder is None:
        return f"waiting for {device}, which another run holds"
    told = f"waiting for {device}, which process {holder} holds"
    with contextlib.suppress(OSError):
        # the state follows the name, which is in brackets and may hold anything
        if Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}:
            return f"{told}; that process is stopped: kill -CONT {holder} lets it go on, kill {holder} ends it"
    return told

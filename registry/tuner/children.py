"""The run's side of its children: a pool that compiles, and the one process that owns the device."""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import selectors
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ..artifact import Target, Variant
from ..device import Device
from ..errors import RegistryError
from . import nvml
from .jobs import BlockJob, Built, CompileJob, Failed, Outcome, Timed, TrialJob, artifact_from_json, to_json
from .limits import Limits
from .process import Child, Message
from .spawning import Ending

_COMPILE_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
_IN_FLIGHT = 2
_MOST_FAILED_STARTS = 3
_DEVICE_FREE_S = 5.0

Answer = Outcome | Timed


@dataclass
class _Slot:
    """One compiling child and what it is busy with."""

    child: Child
    job: CompileJob | None = None
    deadline: float = math.inf
    compiling: bool = False
    began: float = 0.0


class Compiler:
    """Compiles every wanted variant once, on up to ``size`` processes."""

    def __init__(
        self, selector: selectors.BaseSelector, size: int, files: Sequence[str], limits: Limits | None = None
    ) -> None:
        self._selector = selector
        self._size = size
        self._files = files
        self._limits = limits or Limits()
        self._slots: list[_Slot] = []
        self._queue: collections.deque[CompileJob] = collections.deque()
        self._results: dict[str, Built | Failed] = {}
        self._failed_starts = 0
        self._wanted: set[str] = set()
        self.seconds: dict[str, float] = {}
        """Backend -> how long its variants took, summed over the processes."""

    def want(self, op: str, implementation: str, variant: Variant, target: Target) -> Built | Failed | None:
        """The variant's result, or None while it is being compiled (it is queued if it was not wanted before)."""
        if variant.key not in self._wanted:
            self._wanted.add(variant.key)
            self._queue.append(CompileJob(len(self._wanted), op, implementation, variant, target))
            self._feed()
        return self._results.get(variant.key)

    def keep_only(self, keys: Set[str]) -> None:
        """Forget what is queued and not among ``keys``; what is being compiled goes on."""
        dropped = [job for job in self._queue if job.variant.key not in keys]
        self._wanted.difference_update(job.variant.key for job in dropped)
        self._queue = collections.deque(job for job in self._queue if job.variant.key in keys)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or being compiled."""
        return not self._queue and all(slot.job is None for slot in self._slots)

    def check_deadlines(self) -> None:
        """Kill what compiles for too long."""
        for slot in list(self._slots):
            if time.monotonic() > slot.deadline:
                _forget(self._selector, slot.child)
                self._lose(slot, Failed("timeout", f"compiling took more than {self._limits.compile:g} s"))
            elif slot.child.ended() is not None:
                # a process that it left behind may hold its socket open: no end of messages tells of its own end
                self._readable(slot, gone=True)

    def close(self) -> None:
        """End every child. May be called in any state."""
        for slot in self._slots:
            _forget(self._selector, slot.child)
            slot.child.stop()
        self._slots.clear()

    def _feed(self) -> None:
        for slot in list(self._slots):
            if slot.job is None and self._queue:
                self._assign(slot)
        while self._queue and len(self._slots) < self._size:
            child = Child(
                "registry.tuner.compile_worker", self._files, _COMPILE_ENVIRONMENT, memory_bytes=self._limits.memory
            )
            slot = _Slot(child)
            self._slots.append(slot)
            _watch(self._selector, child, functools.partial(self._readable, slot))
            self._assign(slot)

    def _assign(self, slot: _Slot) -> None:
        slot.job, slot.compiling = self._queue.popleft(), False
        # the child's imports come first; the clock of the step itself starts when the child announces it
        slot.deadline = time.monotonic() + self._limits.compile + self._limits.start
        _send(self._selector, slot.child, to_json(slot.job))

    def _readable(self, slot: _Slot, *, gone: bool = False) -> None:
        messages, there = slot.child.receive()
        _settle(self._selector, slot.child)
        sound = all(self._handle(slot, message) for message in messages)
        if gone or not (sound and there):
            _forget(self._selector, slot.child)
            self._lose(slot, _failed(slot.child.end()) if sound else _NONSENSE)

    def _handle(self, slot: _Slot, message: Message) -> bool:
        """Take in a message; False when it makes no sense, so that the process must go."""
        if message.get("ready"):
            return True
        if slot.job is None or message.get("id") != slot.job.id:
            return False
        if "step" in message:
            slot.compiling, self._failed_starts = True, 0
            slot.began = time.monotonic()
            slot.deadline = slot.began + self._limits.compile
            return True
        try:
            result = _compiled(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self._finish(slot, result)
        return True

    def _finish(self, slot: _Slot, result: Built | Failed) -> None:
        job, slot.job, slot.deadline = slot.job, None, math.inf
        assert job is not None
        backend = job.variant.backend
        self.seconds[backend] = self.seconds.get(backend, 0.0) + time.monotonic() - slot.began
        self._results[job.variant.key] = result
        self._feed()

    def _lose(self, slot: _Slot, failure: Failed) -> None:
        self._slots.remove(slot)
        slot.child.stop()
        if slot.job is None:
            return
        if slot.compiling:
            self._finish(slot, failure)
            return
        # it never came to the variant, which is not to blame
        self._failed_starts += 1
        if self._failed_starts >= _MOST_FAILED_STARTS:
            raise RegistryError(f"compiler processes do not start: {failure.message}")
        self._queue.appendleft(slot.job)
        self._feed()


class DeviceWorker:
    """The one process on the device; killed and replaced when it hangs or dies, at the cost of the job it was at.

    ``fresh``: every process is executed and none forked, for whoever wants an address space of its own.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        device: Device,
        files: Sequence[str],
        answered: Callable[[TrialJob | BlockJob, Answer], None],
        note: Callable[[str], None],
        limits: Limits | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self._selector = selector
        self._device = device
        self._files = files
        self._answered = answered
        self._note = note
        self._limits = limits or Limits()
        self._fresh = fresh
        self._jobs: collections.deque[TrialJob | BlockJob] = collections.deque()
        self._failed_starts = 0
        self._step = ""
        self._spawn()

    @property
    def wants_more(self) -> bool:
        """Whether another job would keep the device from waiting."""
        return len(self._jobs) < _IN_FLIGHT

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self._jobs

    @property
    def pid(self) -> int:
        """The present process's."""
        return self._child.pid

    @property
    def how(self) -> str:
        """How that process was started: ``forked`` or ``executed``."""
        return self._child.how

    def submit(self, job: TrialJob | BlockJob) -> None:
        """Queue a job; its answer comes through ``answered``."""
        self._jobs.append(job)
        self._send()

    def check_deadlines(self) -> None:
        """Replace a worker whose step takes too long, or that ended without the end of its messages telling."""
        if time.monotonic() > self._deadline:
            _forget(self._selector, self._child)
            self._replace(Outcome("timeout", f"{self._step} took more than {self._limits.seconds(self._step):g} s"))
        elif self._child.ended() is not None:
            self._readable(gone=True)

    def close(self) -> None:
        """End the process, and wait until the device is free of it."""
        _forget(self._selector, self._child)
        self._child.close()
        self._await_device()

    def _spawn(self) -> None:
        arguments = [str(self._device.torch), *self._files]
        self._child = Child("registry.tuner.worker", arguments, memory_bytes=self._limits.memory, fresh=self._fresh)
        _watch(self._selector, self._child, self._readable)
        self._sent = 0
        self._ready = False
        self._busy = False
        self._enter("start")

    def _enter(self, step: str) -> None:
        if not self._busy or self._step == "wait":
            self._job_began = time.monotonic()
        self._step = step
        self._deadline = time.monotonic() + self._limits.seconds(step)

    def _send(self) -> None:
        while self._ready and self._sent < min(len(self._jobs), _IN_FLIGHT):
            _send(self._selector, self._child, to_json(self._jobs[self._sent]))
            self._sent += 1

    def _readable(self, *, gone: bool = False) -> None:
        child = self._child
        messages, there = child.receive()
        _settle(self._selector, child)
        for message in messages:
            if self._child is not child:
                return  # an answer made the run replace or close this worker
            if not self._handle(message):
                _forget(self._selector, child)
                self._replace(Outcome(_NONSENSE.status, _NONSENSE.message))
                return
        if self._child is child and (gone or not there):
            _forget(self._selector, child)
            failure = _failed(child.end())
            self._replace(Outcome(failure.status, failure.message))

    def _handle(self, message: Message) -> bool:
        """Take in a message; False when it makes no sense, so that the process must go."""
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
            answer = _answer(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        if isinstance(answer, Timed) is not isinstance(self._jobs[0], BlockJob):
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
            if self._failed_starts >= _MOST_FAILED_STARTS:
                raise RegistryError(f"the worker on {self._device} does not start: {outcome.message}")
        self._await_device()
        self._spawn()
        if lost is not None:
            self._note(f"the worker was replaced: {outcome.message.splitlines()[0]}")
            self._answered(lost, replace(outcome, seconds=took))

    def _await_device(self) -> None:
        """Until the driver has freed what a process that is gone held: nothing may be measured beside that."""
        gpu = nvml.gpu_of(self._device)
        if gpu is not None and not gpu.wait_until_gone(self._child.pid, _DEVICE_FREE_S):
            self._note(f"{self._device} still lists process {self._child.pid}, which has ended")


_NONSENSE = Failed("crash", "the process answered what nobody had asked")


def _failed(ending: Ending) -> Failed:
    return Failed("out_of_memory" if ending.out_of_memory else "crash", f"the process ended: {ending.why}")


def _watch(selector: selectors.BaseSelector, child: Child, readable: Callable[[], None]) -> None:
    selector.register(child, selectors.EVENT_READ, readable)


def _send(selector: selectors.BaseSelector, child: Child, message: Message) -> None:
    child.send(message)
    _settle(selector, child)


def _settle(selector: selectors.BaseSelector, child: Child) -> None:
    """Send what is left over, and watch for room in the socket as long as anything is."""
    if child.has_unsent:
        child.flush()
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_unsent else 0)
    with contextlib.suppress(KeyError, ValueError):
        key = selector.get_key(child)
        if key.events != events:
            selector.modify(child, events, key.data)


def _forget(selector: selectors.BaseSelector, child: Child) -> None:
    """Stop watching a child, whether or not it is watched and still has its socket."""
    with contextlib.suppress(KeyError, ValueError):
        selector.unregister(child)


def _compiled(message: Message) -> Built | Failed:
    if "built" in message:
        return Built(artifact_from_json(message["built"]))
    return Failed(str(message["failed"]["status"]), str(message["failed"]["message"]))


def _answer(message: Mapping[str, Any]) -> Answer:
    if "timed" in message:
        fields = message["timed"]
        return Timed(
            tuple(map(tuple, fields["times"])),
            tuple(fields["faults"]),
            tuple(map(tuple, fields["positions"])),
            fields["seconds"],
        )
    fields = dict(message["outcome"])
    return Outcome(**{**fields, "samples": tuple(fields["samples"])})

"""The run's side of its children: a pool that compiles, and the one process that owns the device."""

from __future__ import annotations

import collections
import contextlib
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..artifact import Target, Variant
from ..device import Device
from ..errors import RegistryError
from .jobs import BlockJob, Built, CompileJob, Failed, Outcome, Timed, TrialJob, artifact_from_json, to_json
from .process import Child, Message

COMPILE_LIMIT_S = 180.0
STEP_LIMITS_S: Mapping[str, float] = {"start": 120.0, "load": 120.0, "verify": 120.0, "measure": 90.0}
_COMPILE_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
_IN_FLIGHT = 2
_MOST_FAILED_STARTS = 3

Answer = Outcome | Timed


@dataclass
class _Slot:
    """One compiling child and what it is busy with."""

    child: Child
    job: CompileJob | None = None
    deadline: float = float("inf")
    compiling: bool = False


class Compiler:
    """Compiles every wanted variant once, on up to ``size`` processes."""

    def __init__(self, selector: selectors.BaseSelector, size: int, files: Sequence[str]) -> None:
        self._selector = selector
        self._size = size
        self._files = files
        self._slots: list[_Slot] = []
        self._queue: collections.deque[CompileJob] = collections.deque()
        self._results: dict[str, Built | Failed] = {}
        self._failed_starts = 0
        self._wanted: set[str] = set()

    def want(self, op: str, implementation: str, variant: Variant, target: Target) -> Built | Failed | None:
        """The variant's result, or None while it is being compiled (it is queued if it was not wanted before)."""
        if variant.key not in self._wanted:
            self._wanted.add(variant.key)
            self._queue.append(CompileJob(len(self._wanted), op, implementation, variant, target))
            self._feed()
        return self._results.get(variant.key)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or being compiled."""
        return not self._queue and all(slot.job is None for slot in self._slots)

    def check_deadlines(self) -> None:
        """Kill what compiles for too long."""
        for slot in list(self._slots):
            if time.monotonic() > slot.deadline:
                _forget(self._selector, slot.child)
                self._lose(slot, Failed("timeout", f"compiling took more than {COMPILE_LIMIT_S:.0f} s"))

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
            child = Child("registry.tuner.compile_worker", self._files, _COMPILE_ENVIRONMENT)
            slot = _Slot(child)
            self._slots.append(slot)
            self._selector.register(child, selectors.EVENT_READ, lambda slot=slot: self._readable(slot))
            self._assign(slot)

    def _assign(self, slot: _Slot) -> None:
        slot.job, slot.compiling = self._queue.popleft(), False
        # the child's imports come first; the clock of the step itself starts when the child announces it
        slot.deadline = time.monotonic() + COMPILE_LIMIT_S + STEP_LIMITS_S["start"]
        slot.child.send(to_json(slot.job))

    def _readable(self, slot: _Slot) -> None:
        messages, there = slot.child.receive()
        for message in messages:
            self._handle(slot, message)
        if not there:
            _forget(self._selector, slot.child)
            self._lose(slot, Failed("crash", f"the compiler process ended: {slot.child.end()}"))

    def _handle(self, slot: _Slot, message: Message) -> None:
        if "step" in message:
            slot.compiling, self._failed_starts = True, 0
            slot.deadline = time.monotonic() + COMPILE_LIMIT_S
        elif "built" in message:
            self._finish(slot, Built(artifact_from_json(message["built"])))
        elif "failed" in message:
            self._finish(slot, Failed(**message["failed"]))

    def _finish(self, slot: _Slot, result: Built | Failed) -> None:
        job, slot.job, slot.deadline = slot.job, None, float("inf")
        assert job is not None
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
    """The one process on the device; killed and replaced when it hangs or dies, at the cost of the job it was at."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        device: Device,
        files: Sequence[str],
        answered: Callable[[TrialJob | BlockJob, Answer], None],
        note: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._device = device
        self._files = files
        self._answered = answered
        self._note = note
        self._jobs: collections.deque[TrialJob | BlockJob] = collections.deque()
        self._sent = 0
        self._failed_starts = 0
        self._spawn()

    @property
    def wants_more(self) -> bool:
        """Whether another job would keep the device from waiting."""
        return len(self._jobs) < _IN_FLIGHT

    def submit(self, job: TrialJob | BlockJob) -> None:
        """Queue a job; its answer comes through ``answered``."""
        self._jobs.append(job)
        self._send()

    def check_deadlines(self) -> None:
        """Kill a worker whose step takes too long."""
        if time.monotonic() > self._deadline:
            limit = STEP_LIMITS_S[self._step]
            _forget(self._selector, self._child)
            self._replace(Outcome("timeout", f"{self._step} took more than {limit:.0f} s"))

    def close(self) -> None:
        """End the process."""
        _forget(self._selector, self._child)
        self._child.close()

    def _spawn(self) -> None:
        self._child = Child("registry.tuner.worker", [str(self._device.torch), *self._files])
        self._selector.register(self._child, selectors.EVENT_READ, self._readable)
        self._sent = 0
        self._ready = False
        self._busy = False
        self._enter("start")

    def _enter(self, step: str) -> None:
        if not self._busy:
            self._job_began = time.monotonic()
        self._step = step
        self._deadline = time.monotonic() + STEP_LIMITS_S[step]

    def _send(self) -> None:
        while self._ready and self._sent < min(len(self._jobs), _IN_FLIGHT):
            self._child.send(to_json(self._jobs[self._sent]))
            self._sent += 1

    def _readable(self) -> None:
        messages, there = self._child.receive()
        for message in messages:
            self._handle(message)
        if not there:
            _forget(self._selector, self._child)
            self._replace(Outcome("crash", f"the worker process ended: {self._child.end()}"))

    def _handle(self, message: Message) -> None:
        if message.get("ready"):
            self._ready, self._deadline = True, float("inf")
            self._send()
        elif "step" in message:
            self._enter(message["step"])
            if message["step"] != "start":
                self._busy, self._failed_starts = True, 0
        else:
            self._sent -= 1
            job = self._jobs.popleft()
            self._busy, self._deadline = False, float("inf")
            self._send()
            self._answered(job, _answer(message))

    def _replace(self, outcome: Outcome) -> None:
        self._child.stop()
        lost = self._jobs.popleft() if self._busy else None
        took = time.monotonic() - self._job_began
        if lost is None:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                raise RegistryError(f"the worker on {self._device} does not start: {outcome.message}")
        self._spawn()
        if lost is not None:
            self._note(f"the worker was replaced: {outcome.message.splitlines()[0]}")
            self._answered(lost, replace(outcome, seconds=took))


def _forget(selector: selectors.BaseSelector, child: Child) -> None:
    """Stop watching a child, whether or not it is watched and still has its socket."""
    with contextlib.suppress(KeyError, ValueError):
        selector.unregister(child)


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

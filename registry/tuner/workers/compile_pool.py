"""The run's pool of processes that compile variants."""

from __future__ import annotations

import collections
import functools
import math
import selectors
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass

import msgspec

from ...artifact import Artifact, Target, Variant
from ...errors import RegistryError
from ...paths import check_room
from ..jobs import CompileJob, Failed, to_json
from ..limits import Limits
from ..processes.channels import MOST_FAILED_STARTS, forget, send, settle
from ..processes.cores import as_argument
from ..processes.process import Child, Message
from .lost import NONSENSE, failed

_COMPILE_WORKER = "registry.tuner.workers.compile_worker"
_COMPILE_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@dataclass
class _Slot:
    """One compiling child and its job."""

    child: Child
    job: CompileJob | None = None
    deadline: float = math.inf
    compiling: bool = False
    began: float = 0.0


class CompilePool:
    """Compiles every wanted variant once, on up to ``size`` processes, bound to ``cores`` where any are given."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        size: int,
        files: Sequence[str],
        limits: Limits | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        self._selector = selector
        self._size = size
        self._arguments = [as_argument(cores), *files]
        self._limits = limits or Limits()
        self._slots: list[_Slot] = []
        self._queue: collections.deque[CompileJob] = collections.deque()
        self._results: dict[str, Artifact | Failed] = {}
        self._failed_starts = 0
        self._wanted: set[str] = set()
        self.seconds: dict[str, float] = {}
        """Backend -> seconds of compiling its variants, summed over the processes."""

    def want(self, op: str, implementation: str, variant: Variant, target: Target) -> Artifact | Failed | None:
        """The variant's result, or None while it is being compiled (it is queued if it was not wanted before)."""
        if variant.key not in self._wanted:
            self._wanted.add(variant.key)
            self._queue.append(CompileJob(len(self._wanted), op, implementation, variant, target))
            self._feed()
        return self._results.get(variant.key)

    def keep_only(self, keys: Set[str]) -> None:
        """Drop queued variants that are not among ``keys``; a variant that is being compiled is finished."""
        dropped = [job for job in self._queue if job.variant.key not in keys]
        self._wanted.difference_update(job.variant.key for job in dropped)
        self._queue = collections.deque(job for job in self._queue if job.variant.key in keys)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or being compiled."""
        return not self._queue and all(slot.job is None for slot in self._slots)

    def check_deadlines(self) -> None:
        """Kill processes that compile for too long."""
        for slot in list(self._slots):
            if time.monotonic() > slot.deadline:
                forget(self._selector, slot.child)
                self._lose(slot, Failed("timeout", f"compiling took more than {self._limits.compile:g} s"))
            elif slot.child.ended() is not None:
                # a process left behind by the child may hold the socket open, which then does not show the child's end
                self._readable(slot, gone=True)

    def close(self) -> None:
        """End every child. May be called in any state."""
        for slot in self._slots:
            forget(self._selector, slot.child)
            slot.child.kill()
        # each is waited for, but they end together
        for slot in self._slots:
            slot.child.stop()
        self._slots.clear()

    def _feed(self) -> None:
        for slot in list(self._slots):
            if slot.job is None and self._queue:
                self._assign(slot)
        while self._queue and len(self._slots) < self._size:
            memory = self._limits.memory
            slot = _Slot(Child(_COMPILE_WORKER, self._arguments, _COMPILE_ENVIRONMENT, memory_bytes=memory))
            self._slots.append(slot)
            self._selector.register(slot.child, selectors.EVENT_READ, functools.partial(self._readable, slot))
            self._assign(slot)

    def _assign(self, slot: _Slot) -> None:
        slot.job, slot.compiling = self._queue.popleft(), False
        # the child's imports come first; the clock of the step itself starts when the child announces it
        slot.deadline = time.monotonic() + self._limits.compile + self._limits.start
        send(self._selector, slot.child, to_json(slot.job))

    def _readable(self, slot: _Slot, *, gone: bool = False) -> None:
        messages, there = slot.child.receive()
        settle(self._selector, slot.child)
        sound = all(self._handle(slot, message) for message in messages)
        if gone or not (sound and there):
            forget(self._selector, slot.child)
            self._lose(slot, failed(slot.child.end()) if sound else NONSENSE)

    def _handle(self, slot: _Slot, message: Message) -> bool:
        """Take in a message; False for an invalid one, after which the process must go."""
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
            if "built" in message:
                result: Artifact | Failed = msgspec.convert(message["built"], Artifact)
            else:
                result = msgspec.convert(message["failed"], Failed)
        except (KeyError, ValueError):
            return False
        self._finish(slot, result)
        return True

    def _finish(self, slot: _Slot, result: Artifact | Failed) -> None:
        job, slot.job, slot.deadline = slot.job, None, math.inf
        assert job is not None
        backend = job.variant.backend
        self.seconds[backend] = self.seconds.get(backend, 0.0) + time.monotonic() - slot.began
        if isinstance(result, Failed) and result.status == "error":
            check_room()  # if nothing can be compiled any more the run ends, rather than decide without these variants
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
        # the process never came to the variant, which is not to blame
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise RegistryError(f"compiler processes do not start: {failure.message}")
        self._queue.appendleft(slot.job)
        self._feed()

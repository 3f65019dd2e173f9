"""The processes of a run: the compilers, and a worker on each device."""

from __future__ import annotations

import functools
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...artifact import Artifact, Variant
from ...device import Device
from ...errors import RegistryError
from ...implementation import Implementation
from ..events import DeviceUse
from ..jobs import BlockJob, DeviceJob, Failed, JobAnswer, Outcome, TrialJob, VerificationJob
from ..limits import Limits
from ..processes.cores import compiling_cores
from .compile_pool import CompilePool
from .device_client import DeviceWorker, WorkerProgram
from .stretches import Stretches
from .tuned_device import TunedDevice

_TICK_S = 0.5
"""The longest wait for a child's answer."""
_MOST_COMPILERS = 16
"""The most compiling processes for each device."""


class Crew:
    """Starts and ends the children, and waits for answers. Jobs of a device that fails go to another.

    ``devices`` have one hardware identity, so that each runs what was compiled once. ``cores``: for the compilers; by
    default all but a few. When ``stop`` is set, waiting ends as by Ctrl-C. A crew must not be shared between threads.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        files: Sequence[str],
        limits: Limits,
        note: Callable[[str], None],
        *,
        cores: Sequence[int] | None = None,
        stop: threading.Event | None = None,
        program: WorkerProgram | None = None,
    ) -> None:
        self._program = program
        self._on_cpu = devices[0].type == "cpu"
        self._files = files
        self._limits = limits
        self._note = note
        self._stop = stop or threading.Event()
        self._selector = selectors.DefaultSelector()
        cores = compiling_cores(devices[0], len(devices)) if cores is None else cores
        size = min(_MOST_COMPILERS * len(devices), len(cores) or os.cpu_count() or 1)
        self.compiler = CompilePool(self._selector, size, files, limits, cores)
        self.devices = [TunedDevice(device, self._new_worker) for device in devices]
        """The devices that still work."""
        self._all = tuple(self.devices)
        self._trials: list[tuple[TrialJob, Outcome]] = []
        self._returned: list[TrialJob] = []
        self.blocks: list[tuple[float, float]] = []
        """For every series of blocks: its seconds, and the seconds that the workers measured."""
        self._queued = Stretches[BlockJob | VerificationJob](len(self._all))
        self._blocks: dict[int, JobAnswer] = {}
        self._jobs = 0
        self._began = time.monotonic()

    def next_job(self) -> int:
        """A number that no other job of the run has."""
        self._jobs += 1
        return self._jobs

    def start_workers(self) -> None:
        """Start a worker on each device that has none."""
        for one in self.devices:
            one.start()

    def replace_workers(self, *, last: bool) -> None:
        """Replace each worker by a fresh process; ``last``: no other replacement follows soon."""
        if len(self.devices) > 1:
            self.dismiss_workers()  # so that they end together
        for one in self.devices:
            one.replace(last=last)

    def dismiss_workers(self) -> None:
        """Let the workers end meanwhile; ``replace_workers`` starts others."""
        for one in self.devices:
            one.dismiss()

    def built(self, wanted: Sequence[tuple[Implementation, Variant]]) -> Mapping[str, Artifact]:
        """The artifacts of variants by key, compiled if need be; variants that do not compile are left out."""

        def results() -> dict[str, Artifact | Failed | None]:
            want, target = self.compiler.want, self.devices[0].device.target
            return {each.key: want(owner.op, owner.name, each, target) for owner, each in wanted}

        while not all((found := results()).values()):
            self.wait()
        return {key: result for key, result in found.items() if isinstance(result, Artifact)}

    def submit(self, job: TrialJob, on: TunedDevice) -> None:
        """Queue a trial on a device's worker."""
        assert on.worker is not None
        on.worker.submit(job)

    def run_blocks(self, jobs: Sequence[BlockJob | VerificationJob]) -> list[JobAnswer]:
        """Run blocks and verifications on the present workers; answers in the jobs' order. A crash costs a job.

        Verifications that follow each other have something in common and meet one worker; blocks are dealt out.
        """
        self._let_compilers_end()
        began = time.monotonic()
        numbered = [replace(job, id=self.next_job()) for job in jobs]
        add = self._queued.deal if all(isinstance(job, BlockJob) for job in numbered) else self._queued.put
        add(numbered)
        answers = [self.end_block(job.id) for job in numbered]
        at_work = sum(answer.seconds for answer in answers)
        self.blocks.append((round(time.monotonic() - began, 3), round(at_work, 3)))
        return answers

    def begin_block(self, job: BlockJob) -> list[int]:
        """Give the block to each worker; returns a number for each, to be passed to ``end_block``."""
        self._let_compilers_end()
        numbers = []
        for one in self.devices:
            assert one.worker is not None
            numbers.append(self.next_job())
            one.worker.submit(replace(job, id=numbers[-1]))
        return numbers

    def end_block(self, number: int) -> JobAnswer:
        """Wait for a block's answer."""
        while number not in self._blocks:
            self._feed_blocks()
            self.wait()
        return self._blocks.pop(number)

    def wait(self) -> None:
        """Wait until a child has something to say, half a second at most; ``take_answered`` then has the answers.

        Raises RegistryError when no device is left, and KeyboardInterrupt when it is told to stop.
        """
        began = time.monotonic()
        at_work = [one for one in self.devices if one.worker is not None and not one.worker.idle]
        for key, _ in self._selector.select(_TICK_S):
            self._guarded(key.data)
        self.compiler.check_deadlines()
        for worker in [one.worker for one in self.devices]:
            if worker is not None:
                self._guarded(worker.check_deadlines)
        self._give_up_lost()
        for one in at_work:
            one.was_busy(began, time.monotonic())
        for one in self.devices:
            one.look()
        if self._stop.is_set():
            raise KeyboardInterrupt

    def take_answered(self) -> list[tuple[TrialJob, Outcome]]:
        """The trials that were answered since the last call."""
        answered, self._trials = self._trials, []
        return answered

    def take_returned(self) -> list[TrialJob]:
        """The trials that devices which failed since the last call leave undone."""
        returned, self._returned = self._returned, []
        return returned

    @property
    def seconds(self) -> float:
        """Seconds since the crew was made."""
        return time.monotonic() - self._began

    def use(self, after: float) -> tuple[DeviceUse, ...]:
        """How busy each device was, also one that has failed; shares leave out the first ``after`` seconds."""
        return tuple(one.use(after) for one in self._all)

    def close(self) -> None:
        """End every child. May be called in any state."""
        for one in self._all:
            # the driver frees the device while the other processes end
            one.dismiss_all()
        self.compiler.close()
        for one in self._all:
            one.close()
        self._selector.close()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call ``act``, which takes in a child's messages; an error is not raised if a device's ``lost`` tells it."""
        try:
            act()
        except RegistryError:
            if not any(one.lost for one in self.devices):
                raise

    def _give_up_lost(self) -> None:
        """Leave out the devices that are lost; others get their jobs. Raises RegistryError if all are lost."""
        lost = [one for one in self.devices if one.lost]
        if lost and len(lost) == len(self.devices):
            raise RegistryError(lost[0].lost)
        for one in lost:
            self.devices.remove(one)
            others = ", ".join(other.device.label for other in self.devices)
            self._note(f"{' '.join(one.lost.split())}; the run goes on without it, on {others}")
            for job in one.unanswered():
                if not isinstance(job, TrialJob):
                    self._queued.put_back(job)
                else:
                    self._returned.append(job)
            one.close()

    def _feed_blocks(self) -> None:
        # one at a time: a block's message is long, and a full pipe to a child that hangs would block this loop
        for place, one in enumerate(self._all):
            if one in self.devices and one.worker is not None and one.worker.idle:
                job = self._queued.take(place)
                if job is not None:
                    one.worker.submit(job)

    def _let_compilers_end(self) -> None:
        """On a CPU, wait until nothing compiles: compilers and worker want the same cores."""
        while self._on_cpu and not self.compiler.idle:
            self.wait()

    def _new_worker(self, on: TunedDevice) -> DeviceWorker:
        take = functools.partial(self._take, on)
        return DeviceWorker(self._selector, on.device, self._files, take, self._note, self._limits, self._program)

    def _take(self, by: TunedDevice, job: DeviceJob, answer: JobAnswer) -> None:
        if not isinstance(job, TrialJob):
            self._blocks[job.id] = answer
            return
        assert isinstance(answer, Outcome)
        by.trials += job.entrant.role != "floor"
        self._trials.append((job, replace(answer, details={**answer.details, "device": by.identity})))

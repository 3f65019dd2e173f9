"""A worker: leases jobs for its device one after another, until none is left or it is told to stop."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tuning_db import JobQueue
from tuning_db.queue.entries import FleetWorker, Lease
from tuning_db.records import new_uid

from ..device import Device
from ..discovery.catalog import Catalog
from ..errors import FleetVersionError
from ..tuner.measure.nvml import identity_of
from ..tuner.patience import Patience
from .calibration import KindOfDevice, measure
from .heartbeat import Heartbeat
from .job_run import JobEnd, JobOutcome, RunLimits, run_job
from .planner import CPU
from .versions import differences

LEASE_S = 180.0
"""How long a lease lasts without being renewed: longer than a server takes to be started again."""

_POLL_S, _LONGEST_POLL_S = 2.0, 16.0
"""The first and the longest pause of a worker for which there is no job: hundreds may wait for the last ones to end."""
_PATIENCE_S = 900.0
"""How long the database may be away before a worker gives up."""
_MOST_FAILURES = 3
"""Jobs that may fail in a row before the worker itself is taken to be at fault."""

_MEASURED_AFTER = frozenset({JobEnd.DONE, JobEnd.FAILED, JobEnd.LOST})
"""Ends of a job after which the device is compared with its kind: a slow device may fail, and lose leases."""


@dataclass(frozen=True)
class WorkOptions:
    """Options of a worker.

    lease_s     seconds for which a job stays its own without a renewal, by the clock of the database
    stay        wait for further plans when no job is left
    patience_s  how long the database may be away
    calibrate   compare the device with others of its model before the first job and after every job
    """

    lease_s: float = LEASE_S
    stay: bool = False
    patience_s: float = _PATIENCE_S
    calibrate: bool = False


@dataclass
class WorkSummary:
    """The jobs that a worker took by how they ended, and why it left: "" when no job was left for it."""

    ends: dict[JobEnd, int] = field(default_factory=dict)
    fault: str = ""

    @property
    def done(self) -> int:
        return self.ends.get(JobEnd.DONE, 0)


class LeasingWorker:
    """Works on one device. ``tell`` gets a line for each job; ``leave`` may be called from a signal's handler."""

    def __init__(
        self,
        queue: JobQueue,
        database: str | None,
        device: Device,
        catalog: Catalog,
        options: WorkOptions,
        tell: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._database = database
        self._device = device
        self._catalog = catalog
        self._options = options
        self._tell = tell
        self._patiently = Patience(tell, options.patience_s)
        self._names = [device.name] if device.type == "cuda" else [CPU, device.name]
        self._leaving = threading.Event()
        self._stop_job = threading.Event()
        self._checked: dict[int, list[str]] = {}
        host = socket.gethostname()
        identity = identity_of(device) if device.type == "cuda" else host
        self.record = FleetWorker(new_uid(), host, os.getpid(), device.name, identity, dict(device.software()))
        self.summary = WorkSummary()
        self._kind = KindOfDevice(0)
        self._pause = _POLL_S

    def leave(self) -> None:
        """Give the present job back and leave, soon."""
        self._leaving.set()
        self._stop_job.set()

    def run(self) -> WorkSummary:
        """Work until no job is left for this device, or until told to leave.

        Raises FleetVersionError where every plan with open jobs requires other versions than are installed here.
        """
        self._patiently(lambda: self._queue.register(self.record))
        state, message = "left", ""
        try:
            if slow := self._slow():
                state, self.summary.fault = "set aside", slow
            else:
                self._work()
                state = "set aside" if self.summary.ends.get(JobEnd.ASIDE) else state
            message = self.summary.fault
        except FleetVersionError as fault:
            state, message = "refused", fault.message
            raise
        finally:
            self._patiently(lambda: self._queue.beat(self.record.uid, state, message, ended=True))
        return self.summary

    def _work(self) -> None:
        failures = 0
        while not self._leaving.is_set() and not self.summary.fault:
            lease = self._next()
            if lease is None:
                if not self._wait():
                    return
                continue
            outcome = self._carry_out(lease)
            failures = failures + 1 if outcome.end is JobEnd.FAILED else 0
            if outcome.end in {JobEnd.UNFIT, JobEnd.ASIDE}:
                self.summary.fault = outcome.message
            elif failures >= _MOST_FAILURES:
                self.summary.fault = f"{failures} jobs failed in a row; the last: {outcome.message}"

    def _next(self) -> Lease | None:
        plans = self._fitting_plans()
        if not plans:
            return None
        seconds = self._options.lease_s
        return self._patiently(lambda: self._queue.lease(self.record.uid, self._names, plans, seconds))

    def _fitting_plans(self) -> list[int]:
        """The open plans whose required versions are installed here. Raises FleetVersionError if none of them is."""
        plans = self._patiently(lambda: self._queue.open_plans(self._names))
        for number, requires in plans.items():
            if number not in self._checked:
                self._checked[number] = told = differences(requires, self._catalog)
                if told:
                    self._tell(f"plan {number} is not for this node: {'; '.join(told)}")
        fitting = [number for number in plans if not self._checked[number]]
        if plans and not fitting:
            told = self._checked[min(plans)]
            raise FleetVersionError(
                f"this node may not work: {'; '.join(told)}",
                hint="install what the fleet works with, or plan anew here",
            )
        return fitting

    def _wait(self) -> bool:
        """Wait for a job that may come; False if none can come any more."""
        if not self._options.stay and not self._patiently(lambda: self._queue.open_plans(self._names)):
            return False
        self._patiently(lambda: self._queue.beat(self.record.uid, "waiting"))
        self._leaving.wait(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(2 * self._pause, _LONGEST_POLL_S)
        return True

    def _carry_out(self, lease: Lease) -> JobOutcome:
        self._pause = _POLL_S
        self._stop_job = threading.Event()
        if self._leaving.is_set():
            self._stop_job.set()
        count = len(lease.problems)
        name = f"job {lease.fence.job[:8]} ({lease.op}, {count} problem{'' if count == 1 else 's'})"
        self._tell(f"{name}: attempt {lease.attempt} of {lease.most_attempts}")
        began = time.monotonic()
        self._patiently(lambda: self._queue.beat(self.record.uid, "working"))
        with Heartbeat(self._queue, lease.fence, self.record.uid, self._options.lease_s, self._stop_job.set) as heart:
            outcome = self._run(lease)
            if heart.lost and outcome.end is JobEnd.STOPPED:
                outcome = JobOutcome(JobEnd.LOST, "the lease was lost; trials are kept, another worker goes on")
            if outcome.end in _MEASURED_AFTER and (slow := self._slow()):
                outcome = JobOutcome(JobEnd.ASIDE, slow)
        outcome = self._settle(lease, outcome)
        self.summary.ends[outcome.end] = self.summary.ends.get(outcome.end, 0) + 1
        self._tell(f"{name}: {outcome.end.name.lower()} after {time.monotonic() - began:.0f} s: {outcome.message}")
        return outcome

    def _run(self, lease: Lease) -> JobOutcome:
        """Run the job, again if the database was away and came back while the lease lasted."""
        while True:
            outcome = run_job(
                lease, self._queue, self._database, self._device, self._catalog, self._tell, self._stop_job,
                RunLimits(self._options.patience_s, self._kind.variance),
            )  # fmt: skip
            if outcome.end is not JobEnd.AWAY:
                return outcome
            if not self._patiently(lambda: self._queue.renew(lease.fence, self._options.lease_s)):
                return JobOutcome(JobEnd.LOST, outcome.message)

    def _settle(self, lease: Lease, outcome: JobOutcome) -> JobOutcome:
        """Tell the queue how the job ended; the outcome is LOST if the lease does not hold any more.

        What ends the worker as well (ASIDE, UNFIT) does so under a lost lease, too.
        """
        end, message = outcome.end, outcome.message
        if end is JobEnd.LOST:
            return outcome
        if end is JobEnd.ASIDE:
            return self._set_aside(lease, outcome)
        ask = {JobEnd.DONE: self._queue.complete, JobEnd.FAILED: self._queue.fail}.get(end, self._queue.hand_back)
        if self._patiently(lambda: ask(lease.fence, message)) or end is JobEnd.UNFIT:
            return outcome
        return JobOutcome(JobEnd.LOST, f"the lease was lost ({message})")

    def _set_aside(self, lease: Lease, outcome: JobOutcome) -> JobOutcome:
        count = self._patiently(lambda: self._queue.set_aside(lease.fence, outcome.message))
        return JobOutcome(JobEnd.ASIDE, f"{outcome.message}; its {count} decisions are set aside")

    def _slow(self) -> str:
        """Calibrate the device; returns why it is to be set aside: slow, or broken. "" if it is as fast as its kind."""
        if not self._options.calibrate:
            return ""
        times = measure(self._device, self._catalog.files, self._tell)
        if not times:
            return f"no entry of the calibration could be timed on {self.record.identity}"
        self._patiently(lambda: self._queue.calibrated(self.record, times))
        device, software = self.record.device, self.record.software
        self._kind = KindOfDevice.of(self._patiently(lambda: self._queue.calibrations(device, software, times)))
        return self._kind.fault(self.record.identity)

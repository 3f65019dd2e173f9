"""The process that owns the device: builds, verifies and times what it is told to.

Run as ``python -m registry.tuner.workers.worker``.

Everything that can hang, crash or poison a CUDA context happens here; the tuning run kills and replaces it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ...artifact import Artifact
from ...backends import kernel_limit
from ...device import Device
from ...discovery.catalog import Catalog
from ...dispatch.plans.plan import Candidate, Plan, build
from ...problem import Problem
from ..jobs import BlockJob, Entrant, Outcome, TimedBlock, TrialJob, job_from_json
from ..measure.clocks import Clocks
from ..measure.copy_floor import copy_sampler
from ..measure.interleaving import in_turns
from ..measure.protocol import TimingProtocol
from ..measure.samplers import Sampler
from ..measure.sampling import sampler_for
from ..measure.series import Measurement, measure
from ..planning.twin import twin_of
from ..processes.process import Parent
from ..verify.probes import Probes
from ..verify.session import Session, Sessions
from ..verify.timed import TimedPlan
from ..verify.twin_plan import plan_on_twin
from ..verify.verify import verify, verify_timed
from .device_lock import DeviceLock
from .integrity import Integrity, Trust
from .statuses import status_of
from .steps import Announce, Steps


class Worker:
    """State of the worker process: the catalog, the device and the latest sessions."""

    def __init__(self, catalog: Catalog, device: Device) -> None:
        self._catalog = catalog
        self._device = device
        self._sessions = Sessions(catalog.op, device)
        self._clocks = Clocks.of(device)
        self._uncapturable: set[tuple[str, str]] = set()
        self._probes = Probes(device)
        self.trust = Trust(INTEGRITY)

    def trial(self, job: TrialJob, announce: Announce) -> Outcome:
        """Verify, time, verify what was timed."""
        steps = Steps(announce)
        try:
            outcome = self._trial(job, steps)
        except BaseException as fault:  # whatever a stranger's code raises, SystemExit too, is that candidate's outcome
            outcome = Outcome(*status_of(fault))
        if breach := self.trust.breach():
            outcome = Outcome("error", breach)
        if outcome.status != "ok":
            # here, where no traceback holds the tensors any more
            self.start_afresh(job, outcome)
        return steps.recorded(outcome)

    def _trial(self, job: TrialJob, announce: Announce) -> Outcome:
        announce("load")
        protocol = TimingProtocol(**job.protocol)
        session = self.session(self._catalog.op(job.op).problem_of(job.dims), protocol, job.seed)
        if job.entrant.role == "floor":
            announce("measure")
            self._clocks.warm()
            return _measure_copy(session, protocol, self._clocks)
        plan = self._plan(session, job.entrant)
        announce("verify")
        verify(plan, session, self._on_twin(plan, session, job))
        probed = self._probes.come_first(plan)
        if probed:
            self._probes.check(plan, _by_key(job.entrant))
        announce("measure")
        self._clocks.warm()
        timed = TimedPlan(plan, session)
        sampler = self._sampler(plan, timed, session, protocol, job.best_us)
        try:
            found = measure(sampler, protocol, job.best_us, self._clocks)
            announce("verify")
            verify_timed(timed, sampler, session)
            if not probed and _is_promising(found, job.best_us):
                self._probes.check(plan, _by_key(job.entrant))
        finally:
            sampler.close()
        return _outcome(found)

    def block(self, job: BlockJob, announce: Announce) -> TimedBlock:
        """Time entrants in turns; one that cannot run, or is wrong now, is left out with its fault.

        All are where the op itself is refused.
        """
        began = time.perf_counter()
        announce("load")
        protocol = TimingProtocol(**job.protocol)
        try:
            session = self.session(self._catalog.op(job.op).problem_of(job.dims), protocol, job.seed)
        except BaseException as fault:  # as in trial: an op's own code is a stranger's too
            nothing, count, told = ((),), len(job.entrants), ": ".join(status_of(fault))
            seconds = time.perf_counter() - began
            return TimedBlock(nothing * count, (told,) * count, nothing * count, seconds)
        self._clocks.warm()
        entries: dict[int, _Entry] = {}
        faults = [""] * len(job.entrants)
        for place, entrant in enumerate(job.entrants):
            announce("load")
            try:
                entries[place] = self._entry(entrant, session, protocol)
            except BaseException as fault:  # as in trial: one entrant's fault is not the block's
                faults[place] = ": ".join(status_of(fault))
            if breach := self.trust.breach():
                entries.pop(place, None)
                faults[place] = f"error: {breach}"
        announce("measure")
        turns = in_turns({place: entry.sampler for place, entry in entries.items()}, job.rounds, job.seed, self._clocks)
        times = tuple(tuple(turns.times.get(place, ())) for place in range(len(job.entrants)))
        positions = tuple(tuple(turns.positions.get(place, ())) for place in range(len(job.entrants)))
        announce("verify")
        for place, entry in entries.items():
            raised = turns.faults.get(place)
            faults[place] = ": ".join(status_of(raised)) if raised else entry.check(session) if job.verify else ""
            entry.sampler.close()
        if breach := self.trust.breach():
            # whichever did it, it was timed among all the others
            faults = [f"error: {breach}"] * len(faults)
        times = tuple(() if fault else taken for taken, fault in zip(times, faults, strict=True))
        positions = tuple(() if fault else taken for taken, fault in zip(positions, faults, strict=True))
        return TimedBlock(times, tuple(faults), positions, time.perf_counter() - began)

    def _entry(self, entrant: Entrant, session: Session, protocol: TimingProtocol) -> _Entry:
        if entrant.role == "floor":
            entry = _Entry(_copy_sampler(session, protocol))
        else:
            plan = self._plan(session, entrant)
            timed = TimedPlan(plan, session)
            entry = _Entry(self._sampler(plan, timed, session, protocol), timed)
        entry.sampler.warm_up(protocol.warmup_us)
        return entry

    def session(self, problem: Problem, protocol: TimingProtocol, seed: int) -> Session:
        """Inputs and references of a problem: the same at every call, until they are started afresh."""
        return self._sessions.get(problem.op, dict(problem.dims), protocol, seed)

    def _on_twin(self, plan: Plan, session: Session, job: TrialJob) -> tuple[Plan, Session] | None:
        """The candidate's plan on the problem's twin with the twin's session; None without a twin or its artifacts."""
        twin = twin_of(session.op, session.problem)
        if twin is None:
            return None
        there = self.session(twin, session.protocol, job.seed)
        plan_there = plan_on_twin(plan.candidate, there, _by_key(job.entrant))
        return None if plan_there is None else (plan_there, there)

    def _plan(self, session: Session, entrant: Entrant) -> Plan:
        implementation = self._catalog.implementation(session.op.name, entrant.implementation)
        self.trust.admit(implementation)
        candidate = Candidate(implementation, entrant.config)
        return build(session.op, candidate, session.problem, session.arguments, self._device, _by_key(entrant))

    def _sampler(
        self, plan: Plan, timed: TimedPlan, session: Session, protocol: TimingProtocol, best_us: float | None = None
    ) -> Sampler:
        name = session.op.name, plan.candidate.key
        sampler = sampler_for(
            timed.launches,
            capturable=plan.candidate.implementation.capturable and name not in self._uncapturable,
            working_set=session.working_set,
            protocol=protocol,
            device=self._device,
            best_us=best_us,
        )
        if sampler.refused:
            self._uncapturable.add(name)
        return sampler

    def start_afresh(self, job: TrialJob, outcome: Outcome) -> None:
        """What went wrong may have written to the inputs or filled the memory; the next candidate must not suffer."""
        if outcome.status in _NEVER_RAN:
            return
        if outcome.status != "out_of_memory":
            op = self._catalog.op(job.op)
            problem = op.problem_of(job.dims)
            for each in (problem, twin_of(op, problem)):
                if each is not None:
                    self._sessions.drop(each)
            return
        self._sessions.clear()
        self._probes.forget()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class _Entry:
    """An entrant ready to be timed; the copy floor has no plan to verify."""

    sampler: Sampler
    timed: TimedPlan | None = None

    def check(self, session: Session) -> str:
        """What is wrong with what was timed, "" when nothing is."""
        try:
            if self.timed is not None:
                verify_timed(self.timed, self.sampler, session, alone=False)
        except BaseException as fault:  # a stranger's code runs here once more
            return ": ".join(status_of(fault))
        return ""


def _is_promising(found: Measurement, best_us: float | None) -> bool:
    """Whether the candidate may come to win, now or when others are refused."""
    return not found.censored and (best_us is None or found.median_us <= _PROMISING * best_us)


def _by_key(entrant: Entrant) -> dict[str, Artifact]:
    return {artifact.variant.key: artifact for artifact in entrant.artifacts}


def _copy_sampler(session: Session, protocol: TimingProtocol) -> Sampler:
    return copy_sampler(session.op.floor(session.problem).bytes, session.device, protocol)


def _measure_copy(session: Session, protocol: TimingProtocol, clocks: Clocks) -> Outcome:
    sampler = _copy_sampler(session, protocol)
    try:
        return _outcome(measure(sampler, protocol, clocks=clocks))
    finally:
        sampler.close()


def _outcome(found: Measurement) -> Outcome:
    return Outcome("ok", "", found.samples, found.median_us, found.censored, found.stop_reason, 0.0, found.details)


def _is_poisoned(device: Device) -> bool:
    """Whether a kernel's fault has made the CUDA context unusable: every later call then fails."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=device.torch).item()
    except RuntimeError:
        return True
    return False


_MEMORY_SHARE = 0.95
"""Of the device's memory: a candidate that wants more fails by itself, before others on the device do."""

_NEVER_RAN = frozenset({"unsupported", "compile_error", "out_of_resources"})

_PROMISING = 1.5
"""Times the best so far."""

_POISONED = 3
"""Exit code of a worker whose CUDA context has died."""

_UNTRUSTED = 4
"""Exit code of a worker in which a candidate has replaced what measures it."""


def main(arguments: Sequence[str]) -> None:
    """``worker DESCRIPTOR PARENT DEVICE [PLUGIN_FILE ...]``."""
    parent = Parent(int(arguments[0]), int(arguments[1]))
    catalog = Catalog()
    for path in arguments[3:]:
        catalog.load_file(path)
    # what is loaded by now stays: the garbage collector need not go through it while something is timed
    gc.freeze()
    parent.send({"ready": True})
    worker: Worker | None = None
    for message in parent:
        job = job_from_json(message)
        announce = _announcer(parent, int(message["id"]))
        if worker is None:
            # not before the first job: another worker may still be measuring on this device
            announce("start")
            device = _claimed(arguments[2])
            worker = Worker(catalog, device)
            lock, folder = DeviceLock(device), Path.cwd()
        with lock.held(partial(announce, "wait")):
            if isinstance(job, TrialJob):
                outcome = worker.trial(job, announce)
                if outcome.status not in {"ok", "unsupported"} and _is_poisoned(device):
                    parent.send(
                        {"id": job.id, "outcome": vars(Outcome("crash", f"the CUDA context died: {outcome.message}"))}
                    )
                    sys.exit(_POISONED)
                parent.send({"id": job.id, "outcome": vars(outcome)})
                if worker.trust.lost:
                    sys.exit(_UNTRUSTED)
            elif isinstance(job, BlockJob):
                parent.send({"id": job.id, "timed": vars(worker.block(job, announce))})
                if _is_poisoned(device):
                    sys.exit(_POISONED)
                if worker.trust.lost:
                    sys.exit(_UNTRUSTED)
        with contextlib.suppress(OSError):
            os.chdir(folder)  # the next candidate must not start where this one went


def _claimed(name: str) -> Device:
    device = Device.of(name)
    # a process that tries kernels ends with its run, and what it is refused would be held against the candidate
    kernel_limit.MOST_KERNELS = sys.maxsize
    if device.type == "cuda":
        torch.cuda.set_device(device.index)
        torch.cuda.set_per_process_memory_fraction(_MEMORY_SHARE, device.index)
        torch.zeros(1, device=device.torch)
    return device


def _announcer(parent: Parent, job: int) -> Announce:
    def announce(step: str) -> None:
        parent.send({"id": job, "step": step})

    return announce


INTEGRITY = Integrity()
"""Taken when this module has been imported: before any plugin, wherever it is imported first."""


if __name__ == "__main__":
    main(sys.argv[1:])

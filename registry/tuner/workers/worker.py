"""Builds, verifies and times candidates on the device; ``worker_process`` runs it in a process of its own."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from ...artifact import Artifact
from ...device import Device
from ...discovery.catalog import Catalog
from ...dispatch.plans.other_size import bound_by_call
from ...dispatch.plans.plan import Candidate, Plan
from ...problem import Problem
from ..jobs import PROBED, UNTESTED, BlockJob, Entrant, Outcome, TimedBlock, TrialJob, VerificationJob
from ..measure.clocks import Clocks
from ..measure.copy_floor import copy_sampler
from ..measure.interleaving import interleave
from ..measure.persisting_cache import use_integers
from ..measure.protocol import TimingProtocol
from ..measure.roofline import Peaks
from ..measure.samplers import Sampler
from ..measure.sampling import sampler_for
from ..measure.series import PROMISING, measure
from ..planning.twin import twin_of
from ..verify.probes import Probes
from ..verify.session import Session, Sessions
from ..verify.timed import TimedPlan
from ..verify.verify import WrongError, verify, verify_timed
from .integrity import Integrity, Trust
from .source_texts import source_fault
from .statuses import status_of
from .steps import Announce, Steps


class Worker:
    """State of the worker process: the catalog, the device and the latest sessions.

    ``integrity``: taken before any plugin was imported; by default, now.
    """

    def __init__(
        self,
        catalog: Catalog,
        device: Device,
        integrity: Integrity | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self._catalog = catalog
        self._device = device
        self._sessions = sessions or Sessions(catalog.op, device)
        self._clocks = Clocks.of(device)
        self._peaks = Peaks.of(device)
        self._uncapturable: set[tuple[str, str]] = set()
        self._probes = Probes(device)
        self.trust = Trust(integrity or Integrity())

    def trial(self, job: TrialJob, announce: Announce) -> Outcome:
        """The outcome of a trial: verify the candidate, time it, verify the timed outputs."""
        return self._answered(job, Steps(announce), self._trial)

    def _answered(self, job: _Job, steps: Steps, answer: Callable[[_Job, Steps], Outcome]) -> Outcome:
        """The outcome of a job; if memory was short while other problems held some, that of a second try without it."""
        outcome = self._outcome(job, steps, answer)
        # only here does no traceback hold the tensors any more
        if outcome.status == "out_of_memory" and self._make_room(self._catalog.op(job.op).problem_of(job.dims)):
            outcome = self._outcome(job, steps, answer)
        if outcome.status != "ok":
            self.start_afresh(job, outcome)
        return steps.recorded(outcome)

    def _outcome(self, job: _Job, steps: Steps, answer: Callable[[_Job, Steps], Outcome]) -> Outcome:
        try:
            outcome = answer(job, steps)
        except BaseException as fault:  # any fault of a stranger's code, SystemExit too, is the candidate's outcome
            outcome = Outcome(*status_of(fault))
        if breach := self.trust.breach():
            return Outcome("error", breach)
        return outcome

    def _make_room(self, problem: Problem) -> bool:
        """Drop what is held of other problems; True if there was anything."""
        others, probes = self._sessions.keep_only(problem), self._probes.forget()
        if others or probes:
            self._release()
        return others or probes

    def _trial(self, job: TrialJob, announce: Steps) -> Outcome:
        announce("load")
        protocol = TimingProtocol(**job.protocol)
        session = self.session(self._catalog.op(job.op).problem_of(job.dims), protocol, job.seed)
        if job.entrant.role == "floor":
            announce("measure")
            self._clocks.warm()
            return _measure_copy(session, protocol, self._clocks)
        plan = self._plan(session, job.entrant)
        announce("verify")
        twin = self._on_twin(plan, session, job.seed, job.entrant.by_key)
        untested = verify(plan, session, twin, announce.go_on)
        self._check_trust()
        first = self._probes.come_first(plan)
        if first:
            self._probes.check(plan, job.entrant.by_key)
        announce("measure")
        self._clocks.warm()
        found = self._measured(job, plan, session, protocol, announce)
        probed = False
        if _is_promising(found, job.best_us):
            leads = job.best_us is None or (found.median_us or 0.0) <= job.best_us
            if leads and not first:
                self._probes.check(plan, job.entrant.by_key)
            if leads or self._probes.come_first_of_own_size(plan, twin):
                announce.go_on()
                self._probes.check_own_size(plan, session, job.entrant.by_key, twin)
                probed = leads or first
        # while the plan lives: its end may put back what it replaced
        self._check_trust()
        told = {**({PROBED: True} if probed else {}), **({UNTESTED: untested} if untested else {})}
        return replace(found, details={**found.details, **told})

    def _measured(
        self, job: TrialJob, plan: Plan, session: Session, protocol: TimingProtocol, announce: Steps
    ) -> Outcome:
        """The times of a plan's launches, which were right, and whose memory is free again; raises WrongError."""
        timed = self._timed(plan, session)
        sampler = self._sampler(plan, timed, session, protocol, job.best_us)
        try:
            found = measure(sampler, protocol, job.best_us, self._clocks, announce.go_on)
            announce("verify")
            verify_timed(timed, sampler, session)
            if fault := self._beats_the_device(session, found.samples):
                raise WrongError("wrong_result", fault)
            if _is_promising(found, job.best_us) and session.twin is None:
                timed.between.check_kept()
            return found
        finally:
            sampler.close()
            timed.release()

    def block(self, job: BlockJob, announce: Announce) -> TimedBlock:
        """Time entrants in interleaved rounds; an entrant that cannot run, or is wrong now, is left out with its fault.

        All entrants are left out where the op itself is refused.
        """
        began, steps = time.perf_counter(), Steps(announce)
        steps("load")
        protocol = TimingProtocol(**job.protocol)
        try:
            session = self.session(self._catalog.op(job.op).problem_of(job.dims), protocol, job.seed)
        except BaseException as fault:  # as in trial: an op's own code is a stranger's too
            nothing, count, told = ((),), len(job.entrants), ": ".join(status_of(fault))
            seconds = time.perf_counter() - began
            return TimedBlock(nothing * count, (told,) * count, nothing * count, seconds)
        self._clocks.warm()
        entries, faults = self._entries(job, session, protocol, steps)
        steps("measure")
        samplers = {place: entry.sampler for place, entry in entries.items()}
        rounds = interleave(samplers, job.rounds, job.seed, self._clocks, steps.go_on)
        for place, entry in entries.items():
            steps("verify")
            raised = rounds.faults.get(place)
            faults[place] = ": ".join(status_of(raised)) if raised else entry.check(session) if job.verify else ""
            entry.sampler.close()
            if entry.timed is not None and not faults[place]:
                beaten = self._beats_the_device(session, rounds.times[place])
                faults[place] = f"wrong_result: {beaten}" if beaten else ""
        if breach := self.trust.breach():
            # all entrants were timed together, so that no time can be believed
            faults = [f"error: {breach}"] * len(faults)
        times = tuple(() if fault else tuple(rounds.times.get(place, ())) for place, fault in enumerate(faults))
        places = tuple(() if fault else tuple(rounds.positions.get(place, ())) for place, fault in enumerate(faults))
        return TimedBlock(times, tuple(faults), places, time.perf_counter() - began)

    def verification(self, job: VerificationJob, announce: Announce) -> Outcome:
        """Whether a candidate is right on a problem and all its probes; it is not timed."""
        return self._answered(job, Steps(announce), self._verification)

    def _verification(self, job: VerificationJob, announce: Steps) -> Outcome:
        announce("load")
        session = self.session(self._catalog.op(job.op).problem_of(job.dims), TimingProtocol(**job.protocol), job.seed)
        plan = self._plan(session, job.entrant)
        announce("verify")
        twin = self._on_twin(plan, session, job.seed, job.entrant.by_key)
        verify(plan, session, twin, announce.go_on)
        if not job.of_own_size:
            self._probes.check(plan, job.entrant.by_key)
        self._probes.check_own_size(plan, session, job.entrant.by_key, twin)
        self._check_trust()
        return Outcome("ok")

    def _beats_the_device(self, session: Session, samples: Sequence[float]) -> str:
        """Why samples in µs are shorter than the device can be, "" where they are not."""
        floor, regime = session.op.floor(session.problem), session.protocol.regime
        return self._peaks.fault(statistics.median(samples), floor, regime) if samples else ""

    def _entries(
        self, job: BlockJob, session: Session, protocol: TimingProtocol, announce: Announce
    ) -> tuple[dict[int, _Entry], list[str]]:
        """The entrants of a block that can be timed, by place, and the fault of each entrant, "" without one."""
        entries: dict[int, _Entry] = {}
        faults = [""] * len(job.entrants)
        for place, entrant in enumerate(job.entrants):
            announce("load")
            found = self._entry_or_fault(entrant, session, protocol, judged=job.verify)
            if isinstance(found, str):
                faults[place] = found
            else:
                entries[place] = found
            if breach := self.trust.breach():
                entries.pop(place, None)
                faults[place] = f"error: {breach}"
        return entries, faults

    def _entry_or_fault(
        self, entrant: Entrant, session: Session, protocol: TimingProtocol, *, judged: bool
    ) -> _Entry | str:
        """The entrant ready to be timed, else its fault; tried again if other problems held memory that was short."""
        while True:
            try:
                return self._entry(entrant, session, protocol, judged=judged)
            except BaseException as fault:  # as in trial: one entrant's fault is not the block's
                status, message = status_of(fault)
            if status != "out_of_memory" or not self._make_room(session.problem):
                return f"{status}: {message}"

    def _entry(self, entrant: Entrant, session: Session, protocol: TimingProtocol, *, judged: bool) -> _Entry:
        if entrant.role == "floor":
            entry = _Entry(_copy_sampler(session, protocol))
        else:
            plan = self._plan(session, entrant)
            timed = self._timed(plan, session, judged=judged)
            entry = _Entry(self._sampler(plan, timed, session, protocol), timed)
        entry.sampler.warm_up(protocol.warmup_us)
        return entry

    def session(self, problem: Problem, protocol: TimingProtocol, seed: int) -> Session:
        """The session of a problem, with equal inputs and references at every call until ``start_afresh`` drops it."""
        return self._sessions.get(problem.op, dict(problem.dims), protocol, seed)

    def _on_twin(
        self, plan: Plan, session: Session, seed: int, artifacts: Mapping[str, Artifact]
    ) -> tuple[Plan, Session] | None:
        """The candidate's plan on the problem's twin with the twin's session; None without a twin or its artifacts."""
        twin = twin_of(session.op, session.problem)
        if twin is None:
            return None
        there = self.session(twin, session.protocol, seed)
        plan_there = there.bound(plan.candidate, artifacts)
        return None if plan_there is None else (plan_there, there)

    def _plan(self, session: Session, entrant: Entrant) -> Plan:
        op = session.op
        implementation = self._catalog.implementation(op.name, entrant.implementation)
        self.trust.keep(op, self._catalog.implementations(op.name))
        self.trust.admit(implementation)
        if fault := source_fault(implementation, entrant.source):
            raise WrongError("error", fault)
        use_integers((spec.dtype for spec in session.arguments.tensors.values()), self._device.torch)
        candidate = Candidate(implementation, entrant.config)
        plan = bound_by_call(op, candidate, session.problem, session.arguments, self._device, entrant.by_key)
        self._check_trust()
        return plan

    def _timed(self, plan: Plan, session: Session, *, judged: bool = True) -> TimedPlan:
        return TimedPlan(plan, session, judged=judged)

    def _check_trust(self) -> None:
        if breach := self.trust.breach():
            raise WrongError("error", breach)

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
            warm=timed.warm,
            once=session.op.parsed.mutates,
        )
        sampler.between = timed.between
        if sampler.refused:
            self._uncapturable.add(name)
        timed.keep(sampler.copies)
        return sampler

    def start_afresh(self, job: TrialJob | VerificationJob, outcome: Outcome) -> None:
        """Drop the session after a failed trial, which may have written to the inputs or filled the memory."""
        if outcome.status in _NEVER_RAN:
            return
        if outcome.status != "out_of_memory":
            self._drop(self._catalog.op(job.op).problem_of(job.dims))
            return
        self._sessions.clear()
        self._probes.forget()
        self._release()

    def _release(self) -> None:
        """Give the memory of tensors that were dropped back to the device."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _drop(self, problem: Problem) -> None:
        """Drop the sessions of a problem and of its twin."""
        for each in (problem, twin_of(self._catalog.op(problem.op), problem)):
            if each is not None:
                self._sessions.drop(each)


_Job = TypeVar("_Job", TrialJob, VerificationJob)


@dataclass(frozen=True)
class _Entry:
    """An entrant ready to be timed; the copy floor has no plan to verify."""

    sampler: Sampler
    timed: TimedPlan | None = None

    def check(self, session: Session) -> str:
        """The fault of the timed outputs, "" when they are right."""
        try:
            if self.timed is not None:
                verify_timed(self.timed, self.sampler, session, alone=False)
                self.timed.between.check_kept()
        except BaseException as fault:  # a stranger's code runs here once more
            return ": ".join(status_of(fault))
        return ""


def _is_promising(found: Outcome, best_us: float | None) -> bool:
    """Whether the candidate may still win: its time is at most 1.2 times the best so far."""
    return not found.censored and (best_us is None or (found.median_us or 0.0) <= PROMISING * best_us)


def _copy_sampler(session: Session, protocol: TimingProtocol) -> Sampler:
    return copy_sampler(session.op.floor(session.problem).bytes, session.device, protocol)


def _measure_copy(session: Session, protocol: TimingProtocol, clocks: Clocks) -> Outcome:
    sampler = _copy_sampler(session, protocol)
    try:
        return measure(sampler, protocol, clocks=clocks)
    finally:
        sampler.close()


_NEVER_RAN = frozenset({"unsupported", "compile_error", "out_of_resources"})

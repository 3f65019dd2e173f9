"""The worker of a run in sandboxes: trusted itself, it verifies and times candidates that run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...device import Device
from ...discovery.catalog import Catalog
from ...dispatch.plans.plan import Plan
from ...problem import Value
from ...tuner.jobs import PROBED, BlockJob, Entrant, Outcome, TimedBlock, TrialJob, VerificationJob
from ...tuner.measure.protocol import TimingProtocol
from ...tuner.measure.samplers import Sampler
from ...tuner.measure.series import measure
from ...tuner.verify.session import Session, Sessions
from ...tuner.verify.timed import TimedPlan
from ...tuner.verify.verify import verify
from ...tuner.workers.integrity import Integrity
from ...tuner.workers.steps import Announce, Steps
from ...tuner.workers.worker import Worker
from ..entrant import SandboxedEntrant
from ..limits import SandboxLimits
from ..probing import SandboxedProbes
from ..subject import SandboxedSubject
from ..trial import (
    RequestSampler,
    SandboxedImplementation,
    SandboxedSession,
    SandboxedTimedPlan,
    plan_of,
    verify_alone,
)


class SandboxedWorker(Worker):
    """Runs each candidate in a sandbox of its own, which ends with the job.

    ``files``: the plugin file of an implementation, by ``op/name``; others are installed.
    """

    def __init__(
        self,
        catalog: Catalog,
        device: Device,
        files: Mapping[str, Path],
        limits: SandboxLimits,
        integrity: Integrity | None = None,
    ) -> None:
        super().__init__(catalog, device, integrity, Sessions(catalog.op, device, SandboxedSession))
        self._files = files
        self._limits = limits
        self._probes = self._inside = SandboxedProbes(device)
        self._subjects: list[SandboxedSubject] = []

    def trial(self, job: TrialJob, announce: Announce) -> Outcome:
        try:
            return super().trial(job, announce)
        finally:
            self._close_sandboxes()

    def block(self, job: BlockJob, announce: Announce) -> TimedBlock:
        try:
            return super().block(job, announce)
        finally:
            self._close_sandboxes()

    def verification(self, job: VerificationJob, announce: Announce) -> Outcome:
        try:
            return super().verification(job, announce)
        finally:
            self._close_sandboxes()

    def _close_sandboxes(self) -> None:
        for subject in self._subjects:
            subject.close()
        self._subjects.clear()

    def _trial(self, job: TrialJob, announce: Steps) -> Outcome:
        if job.entrant.role == "floor":
            return super()._trial(job, announce)
        announce("load")
        protocol = TimingProtocol(**job.protocol)
        session = self.session(self._catalog.op(job.op).problem_of(job.dims), protocol, job.seed)
        plan = self._plan(session, job.entrant)
        subject = _subject_of(plan)
        announce("verify")
        verify(plan, session, None, announce.go_on)
        announce("measure")
        self._clocks.warm()
        timed = self._timed(plan, session)
        sampler = self._sampler(plan, timed, session, protocol)
        found = measure(sampler, protocol, job.best_us, self._clocks, announce.go_on)
        announce("verify")
        verify_alone(subject, timed, sampler, session, found.median_us or 0.0)
        timed.between.check_kept()
        told: dict[str, Value] = {
            "request_us": subject.request_us(), "calls": sampler.copies, "limited_by": subject.program.limited_by
        }  # fmt: skip
        # later ones are asked where they may win: by a job of their own
        if self._inside.come_first(plan) or job.best_us is None or (found.median_us or 0.0) <= job.best_us:
            announce.go_on()
            self._inside.check_everywhere(plan, session)
            told[PROBED] = True
        return replace(found, details={**found.details, **told})

    def _verification(self, job: VerificationJob, announce: Steps) -> Outcome:
        announce("load")
        session = self.session(self._catalog.op(job.op).problem_of(job.dims), TimingProtocol(**job.protocol), job.seed)
        plan = self._plan(session, job.entrant)
        announce("verify")
        verify(plan, session, None, announce.go_on)
        self._inside.check_everywhere(plan, session, of_own_size=job.of_own_size)
        return Outcome("ok")

    def _plan(self, session: Session, entrant: Entrant) -> Plan:
        named = self._entrant(session.op.name, entrant)
        subject = SandboxedSubject(named, session.op, session.problem, self._device, self._limits)
        self._subjects.append(subject)
        return plan_of(subject, named, session)

    def _entrant(self, op: str, entrant: Entrant) -> SandboxedEntrant:
        file = self._files.get(f"{op}/{entrant.implementation}")
        if file is not None:
            return SandboxedEntrant(op, entrant.implementation, file, config=entrant.config)
        found = self._catalog.implementation(op, entrant.implementation)
        return SandboxedEntrant.installed(found, self._catalog, entrant.config)

    def _timed(self, plan: Plan, session: Session, *, judged: bool = True) -> TimedPlan:
        return SandboxedTimedPlan(plan, session, judged=judged)

    def _sampler(
        self, plan: Plan, timed: TimedPlan, session: Session, protocol: TimingProtocol, best_us: float | None = None
    ) -> Sampler:
        return RequestSampler(_subject_of(plan), timed, session)


def _subject_of(plan: Plan) -> SandboxedSubject:
    implementation = plan.candidate.implementation
    assert isinstance(implementation, SandboxedImplementation)
    return implementation.subject

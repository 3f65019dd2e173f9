"""One entrant on one problem: verified and timed as in a tuning run, while its code runs in a sandbox."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ..artifact import Built, Signature
from ..device import Device
from ..dispatch.plans.plan import Candidate, Plan, build
from ..faults.device_faults import out_of_memory
from ..implementation import Implementation, Run
from ..problem import Problem
from ..space import Config, Space
from ..tuner.jobs import Outcome
from ..tuner.measure.clocks import Clocks
from ..tuner.measure.protocol import TimingProtocol
from ..tuner.measure.rotation import Rotation
from ..tuner.measure.samplers import Sample, Sampler, copies_of
from ..tuner.measure.sampling import copies_in_time
from ..tuner.measure.series import measure
from ..tuner.verify.session import Session
from ..tuner.verify.timed import TimedPlan
from ..tuner.verify.verdicts import WrongError
from ..tuner.verify.verify import verify, verify_timed
from ..tuner.workers.device_lock import DeviceLock
from .calls import SandboxedCalls
from .entrant import SandboxedEntrant
from .limits import SandboxLimits
from .subject import SandboxedSubject

_HOST_BYTES = 64 << 20
_GPU_BYTES = 4 << 30
"""Bytes that all slots may take: to go through so many lasts a hundred times as long as asking for it."""
_GPU_SHARE = 0.08
_HOST_SLOTS, _GPU_SLOTS = 128, 512
"""The most slots: so many short calls last a hundred times as long as asking for them."""
_LOOK = 2
_ALONE, _ALONE_HOST_US, _ALONE_GPU_US = 1.5, 1_000.0, 250.0
"""A call alone may take so many times as long, and so many µs more, for its launch and cold caches.

On a CPU other processes add to it: with 20 that wanted one of two cores, the shortest of 60 calls took 200 µs more. On
an H200's host a call alone took 302 µs where one of many took 22: what a request to do nothing takes is added twice.
"""
_TRIES = 4


def sandboxed_protocol(device: Device, limit_us: float) -> TimingProtocol:
    """The protocol of samples that are requests: one call on each of many slots, by the host's clock."""
    usual, most = TimingProtocol.of(device), _GPU_SLOTS if device.type == "cuda" else _HOST_SLOTS
    return replace(
        usual, clock="request", max_copies=most, flush=False, turn_us=50_000.0, min_samples=6, max_samples=24,
        limit_us=limit_us,
    )  # fmt: skip


class SandboxedSession(Session):
    """A session whose copies are as many as make a request long; all its tensors are private."""

    @cached_property
    def rotation(self) -> Rotation:
        values = self.values(self.timed_kind)
        room = _HOST_BYTES if self.device.type != "cuda" else min(_GPU_BYTES, _GPU_SHARE * self.device.memory_bytes)
        count = max(2, copies_of(self.working_set, self.protocol), int(room / max(self.working_set, 1)))
        rotation = Rotation(values, min(self.protocol.max_copies, count), self.independent)
        rotation.show(self.timed_kind, values)
        return rotation


class SandboxedImplementation(Implementation):
    """An implementation whose runs are requests to a sandbox."""

    capturable = False

    def __init__(self, subject: SandboxedSubject, entrant: SandboxedEntrant, device: Device) -> None:
        vars(self).update(op=entrant.op, name=entrant.name, device_types=frozenset({device.type}))
        self.deterministic = subject.deterministic
        self.subject = subject
        self._config = entrant.config or {}
        self._is_bound = False

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(**{name: [value] for name, value in self._config.items()})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run of the subject's own problem, for which it is bound first, then of others."""
        if not self._is_bound:
            self._is_bound = True
            return self.subject.calls.run
        signature = built.signature
        return self.subject.calls_of(problem, signature.arguments, [*signature.outputs.values()]).run

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        home = calls_by(like)
        if home is None:
            return None
        return self.subject.calls_of(problem, signature.arguments, [*signature.outputs.values()], home).run


def calls_by(run: Run | None) -> SandboxedCalls | None:
    """The calls that a run makes, None if it is no run in a sandbox."""
    found = getattr(run, "__self__", None)
    return found if isinstance(found, SandboxedCalls) else None


class SandboxedTimedPlan(TimedPlan):
    """A timed plan that changes no weights of an entrant that prepares them."""

    def _places(self) -> tuple[int, ...]:
        implementation, session = self._plan.candidate.implementation, self._session
        assert isinstance(implementation, SandboxedImplementation)
        kept = session.op.weights if implementation.subject.prepares else frozenset()
        return tuple(place for place in session.unmutated if session.op.parsed.names[place] not in kept)


class RequestSampler(Sampler):
    """Samples of requests: one call on each copy, timed by this process from when the sandbox may begin."""

    how = "request"

    def __init__(self, subject: SandboxedSubject, timed: TimedPlan, session: Session) -> None:
        self._subject = subject
        self._timed = timed
        self._copies = session.rotation.copies
        # the first call on a copy also finds its pages for the first time
        self._request(_LOOK)
        self.launch_us = max(self._request(_LOOK) / _LOOK, 0.1)
        self.copies = copies_in_time(len(self._copies), self.launch_us, session.protocol)
        timed.keep(self.copies)
        self.between = timed.between

    def _request(self, count: int) -> float:
        return self._subject.timed(0, self._copies[:count], self._timed.outputs[:count])

    def take(self, count: int) -> list[Sample]:
        return [self._sample() for _ in range(count)]

    def _sample(self) -> Sample:
        self.between(range(self.copies))
        self.between.ready()
        us = self._request(self.copies)
        self.between.look()
        return Sample(us / self.copies)

    def replay(self) -> None:
        self._request(self.copies)


@dataclass(frozen=True)
class SandboxedTrial:
    """The outcome of an entrant, and what its times hold beside its own work.

    request_us    of a request to do nothing, within each sample
    calls         of the implementation in a sample
    limited_by    what limits its memory, see ``SandboxedProgram.limited_by``
    """

    outcome: Outcome
    request_us: float = 0.0
    calls: int = 0
    limited_by: str = ""


Examination = Callable[[Plan, Session], None]
"""Examines a plan in a sandbox further; raises WrongError."""


@torch.no_grad()
def trial(
    entrant: SandboxedEntrant,
    session: Session,
    limits: SandboxLimits,
    *,
    judged: bool = True,
    examine: Examination = lambda *_: None,
) -> SandboxedTrial:
    """Verify an entrant, time it, verify what was timed; without ``judged`` time it only, while samples are judged.

    ``examine``: what is done last with an entrant that is judged. Raises SandboxError where there is no sandbox on this
    machine; all faults of the entrant are its outcome.
    """
    began = time.perf_counter()
    subject = SandboxedSubject(entrant, session.op, session.problem, session.device, limits)
    try:
        found = _tried(subject, entrant, session, examine if judged else None)
    except WrongError as fault:
        found = SandboxedTrial(Outcome(fault.status, fault.message))
    except Exception as fault:
        if not out_of_memory(fault):
            raise
        found = SandboxedTrial(Outcome("out_of_memory", "while it runs, there is no memory left for its inputs"))
    finally:
        subject.close()
    return replace(found, outcome=replace(found.outcome, seconds=time.perf_counter() - began))


def _tried(
    subject: SandboxedSubject, entrant: SandboxedEntrant, session: Session, examine: Examination | None
) -> SandboxedTrial:
    plan = plan_of(subject, entrant, session)
    if examine is not None:
        verify(plan, session)
    lock = DeviceLock(session.device)
    try:
        with lock.held(lambda: None):
            found = _timed(subject, plan, session, judged=examine is not None)
    finally:
        lock.close()
    if examine is not None:
        examine(plan, session)
    return found


def _timed(subject: SandboxedSubject, plan: Plan, session: Session, *, judged: bool) -> SandboxedTrial:
    timed = SandboxedTimedPlan(plan, session)
    sampler = RequestSampler(subject, timed, session)
    clocks = Clocks.of(session.device)
    clocks.warm()
    outcome = measure(sampler, session.protocol, None, clocks)
    if judged:
        verify_alone(subject, timed, sampler, session, outcome.median_us or 0.0)
    else:
        timed.between.settle()
    timed.between.check_kept()
    return SandboxedTrial(outcome, subject.request_us(), sampler.copies, subject.program.limited_by)


def verify_alone(
    subject: SandboxedSubject, timed: TimedPlan, sampler: Sampler, session: Session, one_of_many_us: float
) -> None:
    """``verify_timed``; raises WrongError also where calls alone take much longer than those of a request for many.

    An entrant has all inputs of a request at hand, and might work on several calls at once, which no caller can. Calls
    one by one are a part of verifying; where all took long they are made again: other processes may be in the way.
    """
    more_us = _ALONE_HOST_US
    if session.device.type == "cuda":
        more_us = _ALONE_GPU_US + 2 * subject.request_us()
    most_us = _ALONE * one_of_many_us + more_us
    for _ in range(_TRIES):
        subject.calls.alone_us = math.inf
        verify_timed(timed, sampler, session)
        if subject.calls.alone_us <= most_us or math.isinf(subject.calls.alone_us):
            return
        timed.show(session.timed_kind, session.values(session.timed_kind))
    raise WrongError(
        "wrong_result",
        f"a call alone takes {subject.calls.alone_us:.0f} µs, one of many {one_of_many_us:.0f}:"
        " it works on several at once",
    )


def plan_of(subject: SandboxedSubject, entrant: SandboxedEntrant, session: Session) -> Plan:
    """The plan whose calls are requests to the subject's sandbox, which loads the entrant."""
    values = session.values(session.timed_kind)
    outputs = session.op.output_specs(session.arguments, session.device.torch)
    subject.load(values, [*outputs.values()], len(session.rotation.copies))
    candidate = Candidate(SandboxedImplementation(subject, entrant, session.device), entrant.config or {})
    return build(session.op, candidate, session.problem, session.arguments, session.device)

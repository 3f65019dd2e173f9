"""One candidate through all that a trial checks, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from registry.artifact import Built
from registry.device import Device
from registry.dispatch.plans.other_size import bound_by_call
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.samplers import Sampler
from registry.tuner.measure.sampling import sampler_for
from registry.tuner.verify.probes import Probes
from registry.tuner.verify.session import Session
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.verify.verify import verify, verify_timed

CPU = Device.of("cpu")
PROTOCOL = replace(TimingProtocol.of(CPU), cache_bytes=2**20)
Function = Callable[..., Any]


class Custom(Implementation):
    """Calls a function of the outputs and the arguments."""

    name = "test.custom"
    device_types = frozenset({"cpu"})

    def __init__(self, op: str, function: Function) -> None:
        self.op = op
        self._function = function

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            return self._function(*outputs, *arguments)

        return run


def timed_on(session: Session, implementation: Implementation, config: Config) -> tuple[TimedPlan, Sampler]:
    """Ready to be timed."""
    plan = build(session.op, Candidate(implementation, config), session.problem, session.arguments, CPU)
    timed = TimedPlan(plan, session)
    sampler = sampler_for(
        timed.launches, capturable=True, working_set=session.working_set, protocol=PROTOCOL, device=CPU, warm=timed.warm
    )
    # a first launch that other programs delayed is taken for a slow one
    timed.keep(sampler.copies)
    return timed, sampler


def go_through(implementation: Implementation, session: Session, config: Config, probes: Probes | None = None) -> None:
    """What a trial does, but for the samples. ``probes``: those of a worker that other candidates have met."""
    plan = bound_by_call(session.op, Candidate(implementation, config), session.problem, session.arguments, CPU)
    verify(plan, session)
    (probes or Probes(CPU)).check(plan, {artifact.variant.key: artifact for artifact in plan.artifacts})
    timed, sampler = timed_on(session, implementation, config)
    verify_timed(timed, sampler, session)
    verify_timed(timed, sampler, session, alone=False)

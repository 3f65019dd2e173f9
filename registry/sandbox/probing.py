"""Probes of entrants in sandboxes: other sizes and layouts, and calls of two threads at once."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from ..contract import Op
from ..device import Device
from ..dispatch.plans.plan import Plan
from ..implementation import Tensors
from ..problem import Problem
from ..tuner.verify.probe_inputs import Probe, probes_of_sizes
from ..tuner.verify.probes import Probes
from ..tuner.verify.session import Session
from .trial import calls_by

_SECRETS = 4
_UP_TO = 4
"""Times the size that is tuned: the largest secret one."""


class SandboxedProbes(Probes):
    """Checks entrants on the probes of their problem, and on some whose sizes nobody can foresee.

    The threads are those of a sandbox's process, whose code might make the calls one after the other: what they return
    has to be right all the same.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device, _two_threads_inside)

    def check_everywhere(self, plan: Plan, session: Session, *, of_own_size: bool = False) -> None:
        """Run a plan in a sandbox on all probes of its problem, or on those of its own size alone; raises WrongError.

        A probe is left out where the entrant says that it does not support it, or would have to compile. What has a
        twin is too large for other layouts of its own size.
        """
        if not of_own_size:
            self.check(plan, {})
            self.check_group(f"secret sizes of {plan.problem.key}", _of_secret_sizes, plan, {})
        if session.twin is None:
            self.check_own_size(plan, session, {})
        else:
            self.check_as_held(plan, session)


def _of_secret_sizes(op: Op, problem: Problem, device: Device) -> Iterator[Probe]:
    names = [name for name in problem.dims if name in op.dynamic]
    if not names:
        return iter(())
    most = max(int(problem.dims[names[-1]]), 16) * _UP_TO
    # one near the largest, the others of any magnitude
    drawn = (round(math.exp(secrets.SystemRandom().uniform(0.0, math.log(most)))) for _ in range(_SECRETS - 1))
    return probes_of_sizes(op, problem, device, [most // 2 + secrets.randbelow(most // 2), *drawn])


def _two_threads_inside(
    plan: Plan, inputs: Sequence[tuple[Any, ...]], _device: Device, calls: int
) -> tuple[tuple[Tensors, ...], ...]:
    made = calls_by(plan.run)
    assert made is not None
    return made.of_two_threads(inputs, calls)

"""Probes of entrants in sandboxes: other sizes and layouts, and calls of two threads at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..device import Device
from ..dispatch.plans.plan import Plan
from ..implementation import Tensors
from ..tuner.verify.probes import Probes
from ..tuner.verify.session import Session
from .trial import calls_by


class SandboxedProbes(Probes):
    """Checks entrants on the probes of their problem, more of them at sizes that nobody can foresee.

    The threads are those of a sandbox's process, whose code might make the calls one after the other: what they return
    has to be right all the same.
    """

    secret_sizes = 4

    def __init__(self, device: Device) -> None:
        super().__init__(device, _two_threads_inside)

    def check_everywhere(self, plan: Plan, session: Session, *, of_own_size: bool = False) -> None:
        """Run a plan in a sandbox on all probes of its problem, or on those of its own size alone; raises WrongError.

        A probe is left out where the entrant says that it does not support it, or would have to compile. What has a
        twin is too large for other layouts of its own size.
        """
        if not of_own_size:
            self.check(plan, {})
        if session.twin is None:
            self.check_own_size(plan, session, {})
        else:
            self.check_as_held(plan, session)


def _two_threads_inside(
    plan: Plan, inputs: Sequence[tuple[Any, ...]], _device: Device, calls: int
) -> tuple[tuple[Tensors, ...], ...]:
    made = calls_by(plan.run)
    assert made is not None
    return made.of_two_threads(inputs, calls)

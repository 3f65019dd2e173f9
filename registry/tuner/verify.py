"""Is it right? Every kind of input against the float64 reference, into poisoned outputs, before and after timing."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch.plan import Plan
from ..implementation import Tensors
from ..numerics import output_faults, poison, same_bits
from .samplers import Sampler
from .session import Case, Session, Timed, clone


class WrongError(Exception):
    """A candidate that is wrong. ``status`` is ``wrong_result`` or ``nondeterministic``."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def verify(plan: Plan, session: Session) -> None:
    """Run the plan on every kind of input; raises WrongError."""
    for kind in session.op.kinds:
        case = session.case(kind)
        outputs = _run_untouched(plan, session, case)
        if plan.candidate.implementation.deterministic and kind == session.op.kinds[0]:
            _check_same(outputs, _run(plan, case.values))
        _check(plan, session, case, outputs)


def verify_timed(timed: Timed, sampler: Sampler, session: Session) -> None:
    """Check what was timed: poison the outputs, launch once more just as samples did, compare; raises WrongError."""
    case = session.case(session.op.kinds[0])
    for outputs in timed.outputs:
        poison(outputs)
    sampler.replay()
    for outputs in timed.outputs:
        if fault := session.judge(case, outputs):
            raise WrongError("wrong_result", f"after timing: {fault}")


def _run(plan: Plan, values: tuple[Any, ...]) -> Tensors:
    outputs = () if plan.candidate.implementation.returns_outputs else plan.allocate()
    poison(outputs)
    return plan.into(outputs, values)


def _run_untouched(plan: Plan, session: Session, case: Case) -> Tensors:
    """Run once, and see that the inputs are what they were (an op that mutates is given copies)."""
    if session.op.parsed.mutates:
        return _run(plan, clone(case.values))
    before = clone(case.values)
    outputs = _run(plan, case.values)
    for name, value, was in zip(session.op.parsed.names, case.values, before, strict=True):
        if isinstance(value, torch.Tensor) and not same_bits(value, was):
            raise WrongError("wrong_result", f"it changes its input {name}")
    return outputs


def _check_same(outputs: Tensors, again: Tensors) -> None:
    if not all(same_bits(one, other) for one, other in zip(outputs, again, strict=True)):
        raise WrongError("nondeterministic", "two runs on the same input differ, and it does not say so")


def _check(plan: Plan, session: Session, case: Case, outputs: Tensors) -> None:
    if faults := output_faults(outputs, plan.signature.outputs, case.values):
        raise WrongError("wrong_result", "; ".join(faults))
    if fault := session.judge(case, outputs):
        raise WrongError("wrong_result", f"{case.kind} inputs: {fault}")

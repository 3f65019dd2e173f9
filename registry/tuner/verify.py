"""Is it right? Every kind of input against the float64 reference, into poisoned outputs, before and after timing."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch.plan import Plan
from ..implementation import Tensors
from ..numerics import output_faults, overlap, poison, same_bits
from .samplers import Sampler
from .session import Case, Session, TimedPlan, clone


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
        faults = output_faults(outputs, plan.signature.outputs, case.values)
        if faults:
            raise WrongError("wrong_result", "; ".join(faults))
        if kind == session.op.kinds[0]:
            _check_second_run(plan, outputs, _run_untouched(plan, session, case))
        if fault := session.judge(case, outputs):
            raise WrongError("wrong_result", f"{case.kind} inputs: {fault}")


def verify_timed(timed: TimedPlan, sampler: Sampler, session: Session) -> None:
    """Check what was timed: poison the outputs, launch once more just as samples did, compare; raises WrongError."""
    case = session.case(session.op.kinds[0])
    for outputs in timed.outputs:
        poison(outputs)
    sampler.replay()
    for outputs in timed.outputs:
        if fault := session.judge(case, outputs):
            raise WrongError("wrong_result", f"after timing: {fault}")
    _check_unchanged(session, session.copies[0], session.pristine)


def _run_untouched(plan: Plan, session: Session, case: Case) -> Tensors:
    """Run once into poisoned memory, and see that the inputs are what they were (what mutates is given copies)."""
    if session.op.parsed.mutates:
        return _run(plan, clone(case.values))
    before = clone(case.values)
    outputs = _run(plan, case.values)
    _check_unchanged(session, case.values, before)
    return outputs


def _run(plan: Plan, values: tuple[Any, ...]) -> Tensors:
    functional = plan.candidate.implementation.returns_outputs
    outputs = () if functional else plan.allocate()
    scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
    poison((*outputs, *scratch))
    returned = plan.run(outputs, plan.prepared.extend(values), scratch)
    if not functional:
        return outputs
    return returned if isinstance(returned, tuple) else (returned,)


def _check_unchanged(session: Session, values: tuple[Any, ...], before: tuple[Any, ...]) -> None:
    for name, value, was in zip(session.op.parsed.names, values, before, strict=True):
        if isinstance(value, torch.Tensor) and not same_bits(value, was):
            raise WrongError("wrong_result", f"it changes its input {name}")


def _check_second_run(plan: Plan, outputs: Tensors, again: Tensors) -> None:
    if any(overlap(one, other) for one, other in zip(outputs, again, strict=True)):
        raise WrongError("wrong_result", "two calls return the same memory: the second overwrites the first's result")
    same = all(same_bits(one, other) for one, other in zip(outputs, again, strict=True))
    if plan.candidate.implementation.deterministic and not same:
        raise WrongError("nondeterministic", "two runs on the same input differ, and it does not say so")

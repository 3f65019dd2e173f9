"""Verifies candidates: every kind of input against the float64 reference, before and after timing.

docs/tuning.md lists the checks and their reasons.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch

from ...arguments.schema import handed_out, tensors_in
from ...contract import Op
from ...correctness.bits import having_same_bits
from ...correctness.bounds import holding
from ...correctness.output_faults import output_faults, overlap, poison
from ...dispatch.plans.plan import Plan
from ...implementation import Tensors
from ..measure.samplers import Sampler, no_collection
from .between_samples import LATE
from .late_inputs import late_fault
from .late_runs import LateRuns
from .session import PARTLY, PARTLY_AGAIN, InputCase, Session, clone
from .timed import TimedPlan
from .verdicts import Checks, WrongError

__all__ = ["WrongError", "check_unchanged", "run_poisoned", "verify", "verify_timed"]

# bound at import, so that a candidate's later patch is not called
_sleep: Callable[[int], None] = torch.cuda._sleep

_DELAY_CYCLES = 400_000
"""About 0.2 ms: a launch on the wrong stream runs meanwhile, before the inputs are written."""

_SLOW_US = 1_000_000.0
"""If a round over the copies takes longer (µs), it is launched no more often than necessary."""
_BY_ROUNDING = 100.0
"""Times the tolerance: a larger error cannot come from another order of additions."""
_MISSED = (
    "its inputs had arrived before its launch was queued, also behind the longest wait: the host is slow, or waits for"
    " the device; a first kernel that reads or writes before it waits for the one ahead would not be found"
)


def verify(
    plan: Plan,
    session: Session,
    twin: tuple[Plan, Session] | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> str:
    """Run the plan on every kind of input, and twice on the first; raises WrongError.

    ``twin``: the candidate's plan on the problem's twin, for all but one run on the first kind. ``go_on`` is called
    before each kind. Returns what could not be tested, in words; "" if nothing was left out.
    """
    checks = Checks()
    untested = late_fault(session.device)
    with _stream_kept(session):
        if twin is not None:
            _run_once(plan, session, session.timed_kind, checks)
            plan, session = twin
        go_on()
        case = session.case(session.timed_kind)
        missed = _run_again(plan, session, case, _run_on(plan, session, case, checks), checks)
        checks.settle()
        for kind in session.op.kinds[1:]:
            go_on()
            _run_once(plan, session, kind, checks)
            if not session.is_roomy:
                checks.settle()
        checks.settle()
    return untested or (f"{plan.candidate.implementation.name}: {_MISSED}" if missed else "")


def _run_once(plan: Plan, session: Session, kind: str, checks: Checks) -> None:
    case = session.case(kind)
    results = _run_on(plan, session, case, checks)
    checks.add(holding(case.bounds, results), "wrong_result", partial(_why, session, case, results))


def verify_timed(timed: TimedPlan, sampler: Sampler, session: Session, *, alone: bool = True) -> None:
    """Check the timed launches, on the memory that was timed; raises WrongError.

    First, the samples that were judged during timing. Second, launches as in a sample: on the timed inputs over outputs
    with one changed element, then on other inputs, after a launch on inputs that differ from these in one element.
    Last, launches one by one on inputs with other changed elements, into poisoned outputs.

    ``alone`` is False in the finals, where other entrants were timed on the same inputs: a change of the inputs is then
    found only afterwards. Python collects no garbage meanwhile, as during a capture, which a launch could tell by that.
    """
    with _stream_kept(session), no_collection():
        timed.between.settle()
        timed.check_held(held := Checks())
        held.settle()
        if session.op.parsed.mutates:
            _verify_mutating(timed, session, Checks())
        else:
            _verify_timed(timed, sampler, session, Checks(), alone)


def _verify_timed(timed: TimedPlan, sampler: Sampler, session: Session, checks: Checks, alone: bool) -> None:
    case, other = session.case(session.timed_kind), session.case(PARTLY)
    last = session.case(PARTLY_AGAIN) if alone else case
    if alone:
        _check_copies(session, case, checks)
    else:
        session.rotation.spoil()
    timed.disturb()
    _delay(session)
    timed.show(case.kind, case.pristine)
    sampler.replay()
    timed.check(checks, case, "after timing, on the same inputs, over outputs that others wrote to")
    timed.check_margins(checks)
    checks.settle()
    when = "after timing, other inputs at the same addresses"
    if sampler.launch_us * sampler.copies < _SLOW_US:
        # a candidate that recognises inputs by some elements then has results of these, and misses the restored element
        timed.show(other.kind, other.pristine)
        timed.change_inputs()
        sampler.replay()
    _delay(session)
    timed.show(other.kind, other.pristine)
    sampler.replay()
    timed.check(checks, other, when)
    _check_copies(session, other, checks)
    checks.settle()
    timed.poison()
    _delay(session)
    timed.show(last.kind, last.pristine)
    timed.launch_each()
    timed.check(checks, last, when)
    _check_copies(session, last, checks)
    timed.check_margins(checks)
    checks.settle()
    timed.launch_on(sampler.launch_us, long=alone)


def _verify_mutating(timed: TimedPlan, session: Session, checks: Checks) -> None:
    """Check a plan that mutates its arguments, which timing has changed: one launch from fresh arguments."""
    for kind in (PARTLY, PARTLY_AGAIN, session.timed_kind):
        case = session.case(kind)
        # an entrant that was timed before may have written beside them
        session.rotation.poison(session.mutated)
        session.rotation.spoil()
        timed.poison()
        timed.show(kind, case.pristine)
        timed.launch_each()
        timed.check(checks, case, "after timing")
        _check_copies(session, case, checks)
        timed.check_margins(checks)
        checks.settle()  # a wrong result is examined before the next kind overwrites it


def _run_on(plan: Plan, session: Session, case: InputCase, checks: Checks) -> Tensors:
    """Run once into poisoned outputs and check that the inputs are unchanged; returns ``Op.results``.

    An op that mutates is given copies of the inputs.
    """
    values = clone(case.values) if session.op.parsed.mutates else case.values
    outputs = run_poisoned(plan, values)
    check_unchanged(session.op, values, case.pristine, checks)
    if faults := output_faults(outputs, plan.signature.outputs, values):
        # inputs first: a candidate that changes them is wrong everywhere
        checks.settle()
        raise WrongError("wrong_result", "; ".join(faults))
    if plan.candidate.implementation.returns_outputs and session.is_roomy:
        # memory that the candidate returned and freed is written to, as its next owner would
        poison(tuple([torch.empty_like(output) for output in outputs]))
    return session.op.results(outputs, values)


def _run_again(plan: Plan, session: Session, case: InputCase, results: Tensors, checks: Checks) -> bool:
    """Run a second time at another address, and on a GPU on another stream; check both runs. ``results``: of the first.

    On the GPU a delay comes first, and the inputs are NaN or 0 until it is over. From Hopper on they, outputs and
    scratch are written by a kernel that lets the plan's first begin before it has written them. A run that was queued
    too late for that is followed by another behind a longer wait. The results are read by the very next kernel on
    that stream. The comparison of the runs comes before the check of the first, so that a candidate whose
    runs differ is called nondeterministic rather than wrong. Returns True if all runs were queued too late.
    """
    right = holding(case.bounds, results)
    early, rotation = clone(results), session.rotation
    late = LateRuns(session.device, _late_tensors(plan, session))
    with _other_stream(session):
        again, read = _run_late(plan, session, case, late)
        while late.missed and late.wait_longer():
            why = partial(_why_again, session, case, read, again)
            checks.add(holding(case.bounds, read), "wrong_result", why)
            checks.settle()
            again, read = _run_late(plan, session, case, late)
        same = [having_same_bits(one, other) for one, other in zip(results, read, strict=True)]
    if any(overlap(one, other) for one, other in zip(results, again, strict=True)):
        raise WrongError("wrong_result", "two calls return the same memory: the second overwrites the first's result")
    if plan.candidate.implementation.deterministic:
        checks.add(same, "nondeterministic", partial(_differing, session, case, results, read, again))
    checks.add(right, "wrong_result", partial(_why, session, case, results))
    checks.add(holding(case.bounds, read), "wrong_result", partial(_why_again, session, case, read, again))
    _check_memory((*results, *again), (*early, *read), checks, refill=session.is_roomy)
    if session.op.parsed.mutates:
        checks.settle()
        rotation.spoil()
        session.show(case.kind)
    return late.missed


def _run_late(plan: Plan, session: Session, case: InputCase, late: LateRuns) -> tuple[Tensors, Tensors]:
    """Results of a run on the first copy, whose inputs become valid after it was queued, and a copy of them."""
    rotation = session.rotation
    rotation.spoil()
    _delay(session)
    rotation.show(case.kind, case.pristine)
    if plan.prepared:
        rotation.announce()
    outputs = run_poisoned(plan, rotation.copies[0], late.begin)
    late.queued()
    again = session.op.results(outputs, rotation.copies[0])
    read = clone(again)
    if faults := output_faults(outputs, plan.signature.outputs, rotation.copies[0]):
        raise WrongError("wrong_result", f"its second run: {'; '.join(faults)}")
    return again, read


def _late_tensors(plan: Plan, session: Session) -> list[torch.Tensor]:
    """Tensors of the first copy, but for weights of which the plan has prepared its own form."""
    op, values = session.op, session.rotation.copies[0]
    named = zip(op.parsed.names, values, strict=True)
    return tensors_in(tuple(value for name, value in named if not (plan.prepared and name in op.weights)))


def _check_memory(results: Tensors, early: Tensors, checks: Checks, *, refill: bool) -> None:
    if refill:
        poison(tuple([torch.empty_like(result) for result in results]))
    for result, was in zip(results, early, strict=True):
        fault = "its result changes after it has returned: the memory is used again, or something still writes to it"
        checks.add([having_same_bits(result, was)], "wrong_result", fault)


def _check_copies(session: Session, case: InputCase, checks: Checks) -> None:
    flags = session.rotation.unchanged(case.pristine, session.unmutated)
    for place, flag in flags.items():
        name = session.op.parsed.names[place]
        checks.add([flag], "wrong_result", f"it changes its input {name} in some of the timed copies")


def run_poisoned(
    plan: Plan, values: tuple[Any, ...], ready: Callable[[Iterable[torch.Tensor]], None] = lambda _: None
) -> Tensors:
    """Run once; outputs and scratch hold NaN, or the largest integer, before.

    ``ready`` is given outputs and scratch, which hold that by then, and comes right before the run.
    """
    functional = plan.candidate.implementation.returns_outputs
    outputs = () if functional else plan.allocate()
    scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
    poison((*outputs, *scratch))
    arguments = plan.prepared.extend(values)
    ready((*outputs, *scratch))
    returned = plan.checked_run(handed_out(outputs), handed_out(arguments), handed_out(scratch))
    return returned if functional else outputs


def check_unchanged(op: Op, values: tuple[Any, ...], pristine: tuple[Any, ...], checks: Checks) -> None:
    """Check that each argument that the op does not mutate is unchanged."""
    for parameter, value, was in zip(op.parsed.parameters, values, pristine, strict=True):
        if not parameter.mutated:
            flags = list(map(having_same_bits, tensors_in((value,)), tensors_in((was,))))
            checks.add(flags, "wrong_result", f"it changes its input {parameter.name}")


def _why(session: Session, case: InputCase, results: Tensors) -> str:
    if fault := session.judge(case, results):
        return f"{case.kind} inputs: {fault}"
    return f"{case.kind} inputs: {LATE}" if all(holding(case.bounds, results)) else ""


def _why_again(session: Session, case: InputCase, read: Tensors, again: Tensors) -> str:
    fault = session.judge(case, read)
    if fault and session.device.type == "cuda":
        torch.cuda.synchronize(session.device.torch)
    if not fault:
        return ""
    if not session.judge(case, again):
        return f"its second run: {LATE}"
    where = "on another stream and " if session.device.type == "cuda" else ""
    return f"its second run, {where}at another address, is wrong: {case.kind} inputs: {fault}"


def _differing(session: Session, case: InputCase, results: Tensors, read: Tensors, again: Tensors) -> str:
    """The message for two runs that differ by rounding; raises WrongError where one of them is wrong altogether."""
    if session.compared(case, results).ratio > _BY_ROUNDING:
        raise WrongError("wrong_result", _why(session, case, results))
    if session.compared(case, read).ratio > _BY_ROUNDING:
        raise WrongError("wrong_result", _why_again(session, case, read, again))
    return "two runs on the same input differ, and it does not say so"


@contextlib.contextmanager
def _stream_kept(session: Session) -> Iterator[None]:
    """Check that launches inside leave their stream current; the stream is current again afterwards in any case."""
    if session.device.type != "cuda":
        yield
        return
    device = session.device.torch
    stream = torch.cuda.current_stream(device)
    try:
        yield
        if torch.cuda.current_stream(device) != stream:
            raise WrongError("wrong_result", "it leaves another stream the current one")
    finally:
        torch.cuda.set_stream(stream)


@contextlib.contextmanager
def _other_stream(session: Session) -> Iterator[None]:
    """Context that on a GPU uses a high-priority stream: its reads precede a candidate's work on other streams."""
    if session.device.type != "cuda":
        yield
        return
    stream, before = _stream(session.device.torch), torch.cuda.current_stream(session.device.torch)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
            left = torch.cuda.current_stream(session.device.torch)
        if left != stream:
            raise WrongError("wrong_result", "it leaves another stream the current one")
    finally:
        before.wait_stream(stream)


@lru_cache(maxsize=16)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for each device: libraries keep a workspace for every stream that they have seen."""
    return torch.cuda.Stream(device, priority=-1)


def _delay(session: Session) -> None:
    if session.device.type == "cuda":
        _sleep(_DELAY_CYCLES)

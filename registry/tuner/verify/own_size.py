"""Probes of the tuned problem itself, or of its twin: code that is wrong only from some size on is wrong there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...correctness.expanded import EXPANDED, expanded_inputs, is_any_expanded, loose_bounds, reference_of_expanded
from ...correctness.other_numbers import telling_kinds
from ...correctness.poisoned_layouts import PoisonedLayout, adds_nothing, all_laid_out, layouts_on, surrounded
from ...device import Device
from ...dispatch.plans.plan import Plan
from ...dispatch.plans.two_threads import MOST_CALLS
from .probe_inputs import OTHER_NUMBERS, Probe, cases_with_other_numbers
from .session import InputCase, Session

_IN_PAIRS = ("contiguous", "strided")
"""Layouts that two threads meet in: what is copied first, to have it contiguous, may go to memory that they share."""
_OUTPUTS_PART = 1 / 64
"""The part of the device's memory that the outputs of two threads take, if more than the fewest calls are made."""
_CALLS_PART = 1 / 4
"""The part that all tensors of two threads may take: with what is timed, and their references, they must fit."""
_SHORT_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Outputs of a thread's calls: those with small ones are short, and meet less often."""
_USUAL = 4
"""Calls of a thread where they are long: three in turns, then one that begins with another."""
_FEWEST = 2
"""Calls of a thread: one on an input of its own, one on an input that both threads have."""


def probes_of_own_size(session: Session) -> Iterator[Probe]:
    """The problem of a session in every layout, as a model is served, and with other numbers.

    Two threads meet in the layouts ``_IN_PAIRS``.

    Inputs and references are those of verification, in memory of their own.
    """
    for layout in layouts_on(session.device.type):
        case = session.case(session.timed_kind)
        found = _expanded(session, case, layout) if layout in EXPANDED else case
        probe = None if found is None else _of_case(session, found, layout)
        if probe is not None:
            in_pairs = layout in _IN_PAIRS
            yield replace(probe, beside=_of_case(session, session.other_case, layout)) if in_pairs else probe
            yield from [replace(probe, mode="inference-mode")] if layout == "contiguous" else ()
    kinds = telling_kinds(session.op, session.values)
    for found in cases_with_other_numbers(session.op, session.problem, kinds, session.values, session.case_of):
        probe = _of_case(session, found, "contiguous")
        if probe is not None:
            yield replace(probe, kind=OTHER_NUMBERS)


def own_inputs(session: Session) -> Probe:
    """The problem of a session on the inputs that the session holds, which takes no memory: for two threads alone."""
    timed, other = (
        Probe(
            session.problem, "contiguous", session.arguments, case.values, case.pristine, case.bounds, (), is_own=True
        )
        for case in (session.case(session.timed_kind), session.other_case)
    )
    return replace(timed, beside=other)


def calls_of_two_threads(plan: Plan, device: Device) -> int:
    """Calls that each of two threads makes: as many as time and memory allow, 0 where two take too much memory."""
    outputs = sum(spec.nbytes for spec in plan.signature.outputs.values())
    of_one = sum(spec.nbytes for spec in (*plan.signature.arguments.tensors.values(), *plan.signature.scratch.values()))
    if 2 * (of_one + _FEWEST * outputs) > _CALLS_PART * device.memory_bytes:
        return 0
    short = _SHORT_BYTES["cuda" if device.type == "cuda" else "cpu"]
    rooms = (short, _OUTPUTS_PART * device.memory_bytes)
    quick, affordable = (int(room / max(2 * outputs, 1)) for room in rooms)
    return max(min(max(quick, _USUAL), affordable, MOST_CALLS), _FEWEST)


def _expanded(session: Session, case: InputCase, layout: PoisonedLayout) -> InputCase | None:
    """A case whose inputs the layout expands; None where it expands none, or where the op makes no sense of them."""
    values = expanded_inputs(session.op, case.pristine, layout)
    reference = reference_of_expanded(session.op, values) if is_any_expanded(values) else None
    return None if reference is None else InputCase("", values, values, loose_bounds(reference, case.bounds))


def _of_case(session: Session, case: InputCase, layout: PoisonedLayout) -> Probe | None:
    op, device = session.op, session.device.torch
    try:
        values = all_laid_out(case.pristine, layout)
        arguments = op.arguments(values)
        posed = op.pose(arguments, session.problem)
        outputs = tuple(surrounded(spec) for spec in op.output_specs(arguments, device).values())
    except Exception:  # an op may raise anything for arguments that it does not take
        return None
    if posed != session.problem or adds_nothing(layout, arguments.tensors.values()):
        return None
    return Probe(posed, layout, arguments, values, case.pristine, case.bounds, outputs, is_own=True)

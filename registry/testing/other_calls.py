"""Faults of an implementation in other calls of a problem: other ranks, another reduced dimension, other forms, 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..arguments.schema import tensors_in
from ..contract import Op
from ..correctness.other_forms import other_forms
from ..correctness.other_numbers import telling_kinds, zeroed
from ..correctness.other_views import other_views
from ..correctness.poisoned_layouts import PoisonedLayout, adds_nothing
from ..device import Device
from ..dispatch.plans.plan import Candidate, build
from ..errors import RegistryError
from ..folding import Place
from ..problem import Problem
from .given_inputs import GivenInputs
from .reports import Notes, guarded
from .run_faults import run_faults
from .supported import is_supported

_Call = tuple[str, tuple[Any, ...]]
"""A name, and values."""
_MOST_ELEMENTS = 1 << 20
"""Elements of inputs on a GPU of which other calls are made: a CPU tells what the op makes of these."""


def other_call_faults(
    notes: Notes, op: Op, candidate: Candidate, problem: Problem, device: Device, layouts: Sequence[PoisonedLayout]
) -> Iterator[str]:
    """Faults in calls of the problem with other ranks, another reduced dimension, in other forms or with a number 0.

    ``layouts`` are those of calls with other ranks or another reduced dimension.
    """
    for call, kind, layout in _other_calls(op, problem, device, layouts):
        fresh, which = GivenInputs(op, problem, kind, device, layout, call=call), call[0]
        arguments = op.arguments(fresh.values)
        posed = op.pose(arguments, problem)
        if posed.traits["mixed"] and not candidate.implementation.mixed:
            continue  # what it has not claimed is not worth a note
        place = Place(f"{problem} {which} {layout} {candidate}", str(problem), str(candidate), layout)
        if adds_nothing(layout, arguments.tensors.values()) or not is_supported(notes, place, candidate, posed, device):
            continue
        try:
            plan = build(op, candidate, posed, arguments, device)
        except RegistryError as fault:  # dispatch goes on with the next candidate
            notes.skipped.append((place, fault.message))
            continue
        for told in guarded(run_faults(plan, fresh, 0), candidate.implementation):
            yield f"{layout} {which} inputs: {told}"


def _other_calls(
    op: Op, problem: Problem, device: Device, layouts: Sequence[PoisonedLayout]
) -> Iterator[tuple[_Call, str, PoisonedLayout]]:
    """Each other call of the problem, its kind of inputs, and its layout."""

    def drawn(kind: str) -> tuple[Any, ...]:
        return GivenInputs(op, problem, kind, device, "contiguous").values

    first = op.kinds[0]
    if device.type != "cpu" and sum(one.numel() for one in tensors_in(drawn(first))) > _MOST_ELEMENTS:
        return
    for call in other_views(op, problem, drawn(first)):
        yield from ((call, first, layout) for layout in layouts)
    for call in other_forms(op, problem, drawn(first)):
        yield call, first, "contiguous"
    for kind in telling_kinds(op, drawn) if op.numbers else ():
        yield from ((call, kind, "contiguous") for call in zeroed(op, problem, drawn(kind)))

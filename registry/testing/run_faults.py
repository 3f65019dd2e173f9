"""Runs of a plan that is being checked, and their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ..arguments.schema import tensors_in, with_tensors
from ..contract import as_tuple
from ..correctness import numerics
from ..correctness.bits import all_same, change_all, disturb, same_bits
from ..correctness.bounds import bounds_of, holding
from ..correctness.expanded import loose_bounds
from ..correctness.output_faults import output_faults, overlap
from ..correctness.poisoned_layouts import surrounded
from ..device import Device
from ..dispatch.plans.plan import Plan
from ..dispatch.plans.two_threads import results_of_two_threads
from ..implementation import Tensors
from .given_inputs import SEED, GivenInputs

_STRIDES_REMEDY = ", as the op's fake says: return it so (.contiguous() makes it row-major), or refuse such inputs"


class Expected:
    """The right results for the values of a call; make it before the call, which may mutate its values.

    ``dense``: the values before some were expanded, if they were; see ``loose_bounds``.
    """

    def __init__(self, plan: Plan, values: tuple[Any, ...], dense: tuple[Any, ...] | None = None) -> None:
        self._op, self._problem, self._dense = plan.op, plan.problem, dense
        self._values = with_tensors(values, torch.clone) if plan.op.parsed.mutates else values
        self._reference = numerics.reference64(plan.op, self._values)
        self._own_error = numerics.own_error(plan.op, plan.problem, self._values, self._reference)

    def fault(self, results: Tensors) -> str:
        """The fault of a call's results (``Op.results``), "" when they are right."""
        op, problem, own = self._op, self._problem, self._own_error
        message = numerics.compare(op, problem, results, self._reference, own, self._values).message
        return message if message and not self._is_close(results) else ""

    def _is_close(self, results: Tensors) -> bool:
        """Whether results on expanded inputs are as near as addresses, rather than rounding, let them be."""
        if self._dense is None:
            return False
        op, reference = self._op, numerics.reference64(self._op, self._dense)
        error = numerics.own_error(op, self._problem, self._dense, reference)
        dense = bounds_of(op, self._problem, self._dense, reference, error)
        return all(holding(loose_bounds(self._reference, dense), results))


def run_faults(plan: Plan, given: GivenInputs, start: int) -> Iterator[str]:
    """Faults of one run into poisoned outputs, and of two more runs into its outputs, changed in part and completely.

    ``start`` decides which elements are changed before the second run; before the third all are.
    """
    op, values = plan.op, given.values
    expected = Expected(plan, values, given.dense)
    into = [surrounded(spec) for spec in plan.signature.outputs.values()]
    scratch = {name: surrounded(spec) for name, spec in plan.signature.scratch.items()}
    functional = plan.candidate.implementation.returns_outputs
    outputs = () if functional else tuple(each.tensor for each in into)
    held = tuple(each.tensor for each in scratch.values())
    extended = plan.prepared.extend(values)
    prepared = [(tensor, tensor.clone()) for tensor in extended[len(values) :]]
    outputs = plan.checked_run(outputs, extended, held)
    if faults := output_faults(outputs, plan.signature.outputs, values):
        yield from (f"{fault}{_STRIDES_REMEDY if 'has strides' in fault else ''}" for fault in faults)
        return
    if not all(bool(each.untouched()) for each in into):
        yield "it writes outside its outputs"
    yield from (f"it writes outside its scratch {name}" for name, each in scratch.items() if not bool(each.untouched()))
    yield from given.faults()
    if not all(same_bits(tensor, was) for tensor, was in prepared):
        yield "it changes a tensor that prepare() made"
    if fault := expected.fault(op.results(outputs, values)):
        yield fault
    elif functional:
        return
    for change in (partial(disturb, start=start), change_all):
        if _leaves_alone(plan, given, outputs, change):
            yield "it leaves its output alone when called again on the same input"
        elif fault := expected.fault(op.results(outputs, values)):
            yield f"called again on the same input: {fault}"
        else:
            continue
        return


def _leaves_alone(plan: Plan, given: GivenInputs, outputs: Tensors, change: Callable[[torch.Tensor], None]) -> bool:
    """Run again into outputs with some or all numbers changed; True if the run leaves an output unchanged."""
    given.restore()
    # only contiguous outputs, which have neither gaps nor several elements at one address
    dense = [output for output in outputs if output.numel() and output.is_contiguous()]
    for output in dense:
        change(output.view(-1))
    others = [output.clone() for output in dense]
    plan.into(outputs, given.values)
    return any(same_bits(output, other) for output, other in zip(dense, others, strict=True))


def is_misshapen(plan: Plan, given: GivenInputs) -> bool:
    """True if a call returns anything but tensors of the outputs' shapes, with which no further check can compute."""
    if not plan.candidate.implementation.returns_outputs:
        return False
    outputs: tuple[Any, ...] = as_tuple(plan(*given.values))
    given.restore()
    shapes = [output.shape if isinstance(output, torch.Tensor) else None for output in outputs]
    return shapes != [spec.shape for spec in plan.signature.outputs.values()]


def repeating_faults(plan: Plan, given: GivenInputs) -> Iterator[str]:
    """Faults of several calls with equal arguments at equal addresses."""
    op, values = plan.op, given.values
    first = as_tuple(plan(*values))
    results = tuple(result.clone() for result in op.results(first, values))
    for _ in range(2):
        given.restore()
        again = as_tuple(plan(*values))
        if any(overlap(one, other) for one in first for other in again):
            yield "two calls return the same memory: the second overwrites the first's result"
            return
        if plan.candidate.implementation.deterministic and not all_same(results, op.results(again, values)):
            yield "two runs on the same inputs differ; say deterministic = False if that is meant"
            return


def changed_faults(plan: Plan, given: GivenInputs) -> Iterator[str]:
    """Faults of a second call after the contents of its tensors were changed in place."""
    plan(*given.values)
    if not given.draw_again():
        return
    if plan.prepared:
        # by the version counters the host sees that weights must be prepared again
        torch.autograd.graph.increment_version(tensors_in(given.values))
    for fault in call_faults(plan, given):
        yield f"called again after its inputs have changed at their addresses: {fault}"


def call_faults(plan: Plan, given: GivenInputs) -> Iterator[str]:
    """Faults of one call of the function that allocates, runs and returns, as a user's call runs it."""
    expected = Expected(plan, given.values, given.dense)
    if fault := expected.fault(plan.op.results(as_tuple(plan(*given.values)), given.values)):
        yield fault


def concurrent_faults(plan: Plan, device: Device) -> Iterator[str]:
    """Faults of calls by two threads at once, each with its own inputs."""
    op, kind = plan.op, plan.op.kinds[0]
    inputs = [op.draw(plan.problem, kind, torch.Generator(device.torch).manual_seed(seed)) for seed in (SEED, SEED + 1)]
    expected = [Expected(plan, values) for values in inputs]
    alone = []
    for one, values in zip(expected, inputs, strict=True):
        given = with_tensors(values, torch.clone)
        alone.append(op.results(as_tuple(plan(*given)), given))
        if fault := one.fault(alone[-1]):
            yield fault
            return
    for one, right, calls in zip(expected, alone, results_of_two_threads(plan, inputs, device), strict=True):
        # compare bits first, which is far faster than the error rule
        differing = (results for results in calls if not all_same(results, right))
        if fault := next(filter(None, map(one.fault, differing)), ""):
            remedy = "memory that calls share must be scratch, and inputs stay as they are"
            yield f"called by two threads at once: {fault}; {remedy}"
            return

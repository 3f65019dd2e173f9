"""Inside a sandbox: an implementation bound for the calls of a problem, whose tensors are slots of shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import torch

from ..artifact import Artifact
from ..contract import as_tuple
from ..correctness.output_faults import output_faults
from ..device import Device
from ..discovery import answers
from ..discovery.catalog import Catalog
from ..dispatch.plans.other_size import at_other_size, bound_by_call
from ..dispatch.plans.plan import Candidate, Plan
from ..dispatch.plans.two_threads import results_of_two_threads
from ..errors import RegistryError, UnsupportedError
from ..problem import Arguments, Problem
from ..tuner.planning.variants import variants_at
from ..tuner.verify.verdicts import WrongError
from .memory.slots import SlotLayout, Slots, filled

_changes = count(1)
"""A number for each time that weights were written from outside."""


class BoundEntrant:
    """The implementation that a message tells of, imported."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        catalog = Catalog()
        if told["plugin"]:
            catalog.load_file(told["plugin"])
        self.device = Device.of(told["device"])
        self.op = catalog.op(told["op"])
        self.implementation = catalog.implementation(told["op"], told["name"])
        self._config = told["config"]
        self.built: dict[str, Artifact] = {}
        """What was compiled for its own problem, by variant key: nothing is compiled for others."""

    def candidate(self, problem: Problem) -> Candidate:
        """The implementation with its configuration. Raises UnsupportedError."""
        if reasons := answers.refusals(self.implementation, problem, self.device):
            raise UnsupportedError("; ".join(reasons))
        config = self._config
        return Candidate(
            self.implementation, self.implementation.default(problem, self.device) if config is None else config
        )


class PlacedCalls:
    """A plan with the arguments and outputs of each slot that it runs on."""

    def __init__(
        self,
        entrant: BoundEntrant,
        plan: Plan,
        values: list[tuple[Any, ...]],
        outputs: list[tuple[torch.Tensor, ...]],
    ) -> None:
        self.entrant = entrant
        self.plan = plan
        self._values = values
        self._outputs = outputs
        self._extended: list[tuple[Any, ...]] = []
        self.prepare()

    @classmethod
    def of(
        cls, entrant: BoundEntrant, told: Mapping[str, Any], memory: torch.Tensor, like: PlacedCalls | None
    ) -> PlacedCalls:
        """The calls that a message tells of.

        The first are of the entrant's own problem, which is compiled. Others are bound from what that compiled, by the
        plan of ``like`` where dispatch would use it for them, too. Raises UnsupportedError where the implementation
        does not support them, or would have to compile.
        """
        slots, arguments = Slots(SlotLayout.of_data(told["layout"]), memory), told["arguments"]
        values = [filled(told["values"], tensors[:arguments]) for tensors in slots.tensors]
        op = entrant.op
        given = op.arguments(values[0])
        posed = op.pose(given, op.problem_of(told["dims"]))
        bound = _bound_other if told["is_other"] else _bound
        outputs = [tuple(tensors[arguments:]) for tensors in slots.tensors]
        return cls(entrant, bound(entrant, posed, given, like), values, outputs)

    @property
    def prepares(self) -> bool:
        """Whether the plan prepares weights."""
        return bool(self.plan.prepared)

    @property
    def _copies(self) -> bool:
        """Whether the implementation returns its outputs, which are then copied into the slots."""
        return self.plan.candidate.implementation.returns_outputs

    def prepare(self) -> None:
        """Make prepared tensors anew: their sources were written to from outside."""
        if self.prepares:
            for values in self._values:
                mark_changed(self.entrant, values)
        self._extended = [self.plan.prepared.extend(values) for values in self._values]

    def run(self, first: int, count: int) -> None:
        """Run on ``count`` slots from ``first`` on, from the last to the first again."""
        run, scratch = self.plan.run, tuple(spec.empty() for spec in self.plan.signature.scratch.values())
        total = len(self._values)
        for number in range(first, first + count):
            slot = number % total
            if not self._copies:
                run(self._outputs[slot], self._extended[slot], scratch)
                continue
            returned = as_tuple(run((), self._extended[slot], scratch))
            if count == 1 and (faults := output_faults(returned, self.plan.signature.outputs, self._values[slot])):
                raise WrongError("wrong_result", "; ".join(faults))
            for output, one in zip(self._outputs[slot], returned, strict=True):
                output.copy_(one)


def mark_changed(entrant: BoundEntrant, values: tuple[Any, ...]) -> None:
    """Give the weights among values, which may be new views of memory that was read before, a version of their own."""
    version = next(_changes)
    for name, value in zip(entrant.op.parsed.names, values, strict=True):
        if name in entrant.op.weights and isinstance(value, torch.Tensor):
            while value._version < version:
                torch.autograd.graph.increment_version(value)


def refused_as(fault: Exception) -> str:
    """Why an implementation does not run some calls, by a fault of binding it for them; "" for a fault of its own.

    Dispatch goes on with the next candidate when a plan cannot be built.
    """
    return fault.message if isinstance(fault, RegistryError) else ""


def in_two_threads(calls: PlacedCalls, told: Mapping[str, Any], memory: torch.Tensor) -> None:
    """Make calls by two threads at once, and copy their results to where a message says."""
    given, made = (SlotLayout.of_data(told[name]) for name in ("given", "made"))
    places = Slots(made, memory[given.nbytes :]).tensors
    inputs = [filled(told["values"], tensors) for tensors in Slots(given, memory).tensors]
    if calls.prepares:
        for values in inputs:
            mark_changed(calls.entrant, values)
    found = results_of_two_threads(calls.plan, inputs, calls.entrant.device, told["each"])
    for results, place in zip([one for of_input in found for one in of_input], places, strict=True):
        for result, there in zip(results, place, strict=True):
            if result.shape != there.shape or result.dtype != there.dtype:
                raise WrongError("wrong_result", f"it returns {result.dtype} of shape {tuple(result.shape)}")
            there.copy_(result)
    if calls.entrant.device.type == "cuda":
        torch.cuda.synchronize(calls.entrant.device.torch)


def _bound(entrant: BoundEntrant, problem: Problem, arguments: Arguments, _like: PlacedCalls | None) -> Plan:
    plan = bound_by_call(entrant.op, entrant.candidate(problem), problem, arguments, entrant.device)
    entrant.built.update({each.variant.key: each for each in plan.artifacts})
    return plan


def _bound_other(entrant: BoundEntrant, problem: Problem, arguments: Arguments, like: PlacedCalls | None) -> Plan:
    op, device = entrant.op, entrant.device
    candidate = entrant.candidate(problem)
    wanted = variants_at(op, candidate, problem, arguments, device)
    if wanted is None or any(variant.key not in entrant.built for variant in wanted):
        raise UnsupportedError(f"{candidate} would have to be compiled for {problem}, or does not take it")
    plan = None if like is None else at_other_size(like.plan, problem, arguments, device)
    return plan or bound_by_call(op, candidate, problem, arguments, device, entrant.built)

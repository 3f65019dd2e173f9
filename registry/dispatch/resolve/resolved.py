"""Resolved calls: the run that answers a call, with its reasons and conditions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ...arguments.schema import tensors_in
from ...author_code import at_method
from ...contract import Op
from ...correctness.output_faults import overlap, plain_fault, spec_faults
from ...errors import RegistryError
from ...problem import Arguments, Problem, TensorSpec
from ..hit.counter import Counter
from ..hit.guards import Condition
from ..plans.plan import Plan
from ..plans.resizing import Resized
from ..torch_side.conforming import conforming_reference
from .best_default import Found
from .resolution import Choice

Conditions = tuple[Condition, ...]


@dataclass(frozen=True)
class Resolved:
    """The answer to a call: ``run(*values)`` takes the schema's values in order. ``plan`` is None for the reference.

    ``misses``: why better choices were passed over. ``conditions``: what a table entry must check. ``makeshift``: a
    better choice was not ready, so that this one must not be kept. ``plain_torch``: torch must see the reference's
    operations one by one, e.g. to record or to trace them. ``untuned``: a heuristic chose it, since no winner holds.
    ``calls`` counts the answers.
    """

    choice: Choice
    run: Callable[..., Any]
    problem: Problem | None
    place: Hashable = None
    plan: Plan | None = None
    misses: tuple[str, ...] = ()
    conditions: Conditions = ()
    makeshift: bool = False
    plain_torch: bool = False
    untuned: bool = False
    calls: Counter = field(default_factory=Counter, compare=False)

    @cached_property
    def checked(self) -> bool:
        """Whether the outputs of each first call are checked."""
        return self.plan is not None and self.plan.candidate.implementation.returns_outputs

    @property
    def arguments(self) -> Arguments | None:
        """The arguments of the call that the plan was made for; None for the reference."""
        return None if self.plan is None else self.plan.signature.arguments

    def check(self, outputs: Any, values: tuple[Any, ...]) -> None:
        """Check the outputs that a ``returns_outputs`` implementation returned for ``values``.

        Raises RegistryError unless they are plain tensors as the op declares them, without an argument's memory.
        """
        if not self.checked or self.plan is None:
            return
        given = self.plan.returned(outputs)
        expected = self.plan.signature.outputs
        if len(given) != len(expected):
            told = f"{len(given)} output{'s' * (len(given) != 1)}, expected {len(expected)}: {', '.join(expected)}"
            raise self._fault(f"returned {told}")
        for (name, spec), value in zip(expected.items(), given, strict=True):
            if not isinstance(value, torch.Tensor) or not _fits(value, spec):
                raise self._fault(f"returned an output that does not fit: {'; '.join(spec_faults(name, value, spec))}")
            if fault := plain_fault(value):
                raise self._fault(f"returned {name}, which {fault}")
            if any(overlap(value, argument) for argument in tensors_in(values)):
                raise self._fault(f"returned {name}, which shares memory with an argument")

    def _fault(self, told: str) -> RegistryError:
        """An error about what the implementation returned, with the line of its code."""
        assert self.plan is not None
        place = at_method(self.plan.candidate.implementation, "bind")
        hint = "the op's fake says what the outputs are, and .contiguous() makes one row-major"
        return RegistryError(f"{self.plan.candidate} {told}{place}", hint=hint)


class ResizedAnswer(Resolved):
    """The answer to another size of a call, without a place; its fields are made when they are read.

    ``source``: the choice, the conditions, the function that poses the call's problem again, which is a quarter of what
    is kept of a new size, and the items of a Resized.
    """

    choice = cached_property(lambda self: self.source[0].choice_of(self.problem))
    misses = cached_property(lambda self: self.source[0].misses)
    conditions = cached_property(lambda self: self.source[1])
    problem = cached_property(lambda self: self.source[2](self.arguments))
    arguments: Any = None  # set at once: no property, as the base has
    run = cached_property(lambda self: self.source[3])
    plan = cached_property(lambda self: self.source[4](self.problem, self.arguments, *self.source[3:]))
    untuned = cached_property(lambda self: self.choice.step == "default")

    @staticmethod
    def of(
        found: Found,
        conditions: Conditions,
        pose: Callable[[Arguments], Problem],
        arguments: Arguments,
        resized: Resized,
    ) -> ResizedAnswer:
        """The answer by a choice's plan. Made without ``__init__``, for speed: each new size of a call makes one."""
        call, make_plan, scratch, run = resized
        made: ResizedAnswer = object.__new__(ResizedAnswer)
        own = made.__dict__
        own["source"] = found, conditions, pose, call, make_plan, scratch, run
        own["arguments"] = arguments
        own["calls"] = Counter()
        return made


class Attempt:
    """One run of a resolved call. ``fault`` is the exception that the run itself raised.

    Exceptions that torch raises around it, e.g. in a hook on saved tensors, as checkpointing does, are not its fault.
    """

    def __init__(self, resolved: Resolved) -> None:
        self.fault: Exception | None = None
        self._resolved = resolved

    def __call__(self, *values: Any) -> Any:
        try:
            outputs = self._resolved.run(*values)
            self._resolved.check(outputs, values)
        except Exception as fault:
            self.fault = fault
            raise
        return outputs


def _fits(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    # the stride of a dimension of size one does not matter
    strides = zip(spec.shape, tensor.stride(), spec.strides, strict=False)
    return (tuple(tensor.shape), tensor.dtype, tensor.device) == (spec.shape, spec.dtype, spec.device) and (
        spec.numel == 0 or all(size == 1 or one == other for size, one, other in strides)
    )


def reference(op: Op, reason: str, problem: Problem | None = None, *, real: bool = True) -> Resolved:
    """The answer by the op's reference, for ``reason``. ``real``: the tensors are plain ones, not those of a trace."""
    run = conforming_reference(op) if real else op.reference
    return Resolved(Choice("reference", None, reason), run, problem, plain_torch=True)

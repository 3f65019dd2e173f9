"""One call of an op, and the plans, reference and gradients that may answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..arguments.schema import tensors_in
from ..author_code import at, where_raised
from ..contract import Op
from ..device import Device
from ..errors import InvalidArgumentError, NotReadyError, RegistryError, UnsupportedError
from ..problem import Arguments, Problem
from .forcing import Forced
from .mode import REFERENCE_MODE, Mode
from .resolve.candidates import Call, Plans, place_of
from .resolve.resolved import Resolved, reference
from .torch_side.gradients import CallGradients
from .torch_side.states import capturing, gradient_needed, nothing_to_launch, unusual
from .warning import tell_caller


class Asked:
    """One call: the schema's values in order, their specs, and the problem that they pose."""

    def __init__(self, op: Op, values: tuple[Any, ...]) -> None:
        self.values = values
        self.tensors = tensors_in(values)
        self._op = op
        self._arguments: Arguments | None = None
        self._problem: Problem | None = None

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured from the current stream of the tensors' GPU."""
        return capturing(self.tensors)

    # no cached_property: in Python 3.11 it takes a lock, 1 µs

    @property
    def arguments(self) -> Arguments:
        """The values as specs, which record the attributes that are read."""
        if self._arguments is None:
            self._arguments = self._op.arguments(self.values).watched()
        return self._arguments

    @property
    def problem(self) -> Problem:
        """The problem that the arguments pose. Raises InvalidArgumentError if the op does not accept them."""
        if self._problem is None:
            self._check_ints()
            try:
                self._problem = self._op.pose(self.arguments)
            except RegistryError:
                raise
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
                told = f"{self._op.name}: problem() raised {type(fault).__name__}: {fault}"
                hint = f"the arguments are {', '.join(self._shown())}: does the op accept them?"
                place = where_raised(fault, self._op.problem) or at(self._op.problem)
                raise InvalidArgumentError(f"{told}{place}", hint=hint) from fault
        return self._problem

    def _check_ints(self) -> None:
        for name, value in zip(self._op.parsed.names, self.values, strict=True):
            if type(value) is int and not -(2**63) <= value < 2**63:
                raise InvalidArgumentError(f"{self._op.name}: {name} is {value}, expected an int of 64 bits")

    def _shown(self) -> list[str]:
        """The arguments as text: shapes of tensors, and other values."""
        return [f"{name}: {_shown(one)}" for name, one in zip(self._op.parsed.names, self.values, strict=True)]


def _shown(value: Any) -> str:
    """A value of a call as text: the shape of a tensor, the shapes of a list's."""
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)}"
    if isinstance(value, list | tuple) and any(isinstance(one, torch.Tensor) for one in value):
        first = ", ".join(map(_shown, value[:4]))
        return f"[{first}{', ...' if len(value) > 4 else ''}]"
    return repr(value)[:40]


class Answers:
    """The possible answers to a call of one op: its plans, best first, and its reference."""

    def __init__(self, plans: Plans, gradients: CallGradients, mode: Callable[[], Mode]) -> None:
        self.plans = plans
        self._op = plans.op
        self._gradients = gradients
        self._mode = mode

    def to(self, asked: Asked, forced: Forced | None, generation: int, telling: bool = False) -> Iterator[Resolved]:
        """Everything that may answer a call, best first; the first that runs is used. ``telling``: none will be run."""
        tensors = asked.tensors
        if reason := unusual(tensors):
            yield self._plain_torch(reason, None, None if self._mode() == "reference" else forced, real=False)
            return
        problem = asked.problem
        if reason := nothing_to_launch(tensors):
            yield reference(self._op, reason, problem)
            return
        if self._mode() == "reference":
            yield reference(self._op, REFERENCE_MODE, problem)
            return
        if gradient_needed(tensors) and (refusal := self._gradients.refusal(asked.values)):
            raise refusal
        strict = self._mode() == "strict" and not telling
        place = place_of(asked.arguments)
        known = self.plans.recall(place, forced)
        if known is not None and all(condition(*asked.values) for condition in known.conditions):
            yield known
        call = Call(problem, asked.arguments, Device.of(tensors[0].device), place)
        if asked.capturing:
            yield from self._during_capture(call, forced, generation, strict, telling)
        else:
            yield from self.plans.candidates(call, forced, generation, strict)

    def _during_capture(
        self, call: Call, forced: Forced | None, generation: int, strict: bool, telling: bool
    ) -> Iterator[Resolved]:
        """Loaded plans, the best first, then the reference: nothing is read or compiled while a stream captures."""
        if self.plans.in_memory(call.device):
            yield from self.plans.candidates(call, forced, generation, strict, loaded_only=True)
        reason = "a CUDA stream is capturing and this call's plan is not in memory: call it once before"
        hint = "registry.warmup(...) builds plans ahead"
        if strict:
            raise NotReadyError(f"{call.problem}: {reason}", hint=hint)
        if forced is None and not telling:
            tell_caller(self.plans, "capture", f"torch's reference is captured for {call.problem}: {reason}, or {hint}")
        yield self._plain_torch(reason, call.problem, forced)

    def _plain_torch(
        self, reason: str, problem: Problem | None, forced: Forced | None, *, real: bool = True
    ) -> Resolved:
        if forced is not None:
            raise UnsupportedError(
                f"{self._op.name}: {forced.implementation} is forced, but {reason}",
                hint="leave the registry.using(...) block for this call",
            )
        return reference(self._op, reason, problem, real=real)

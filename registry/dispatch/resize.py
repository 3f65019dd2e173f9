"""Another size of a call that was answered before: what a size cannot change is not asked again.

A family is all calls that differ in sizes alone: tensors of the same kinds and dtypes, row-major and aligned, without
gradient, and the same attributes but for integers. For a member the problem is posed, the choice made, ``unsupported``
and the space asked, and the launch and the outputs evaluated with its own plain integers, as in a miss; the run is
bound to what is loaded. Whatever is out of the ordinary is left to the miss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

from ..arguments.schema import Schema
from ..contract import Op
from ..device import Device
from ..problem import FULL_ALIGNMENT, exact
from .hit.free import free_integer, same
from .hit.guards import aligned
from .plans.plan import Plan
from .resolve.candidates import Plans, Resolved
from .resolve.resolution import undoubted_choice
from .torch_side.situation import counting_writes
from .torch_side.torch_private import (
    PLAIN,
    Check,
    dispatch_modes,
    forward_level,
    function_modes,
    kind_guard,
    stream_capturing,
)

MOST_FAMILIES = 32
"""Per op: dtypes, devices, attributes and which optional tensors are given."""


class _Family(NamedTuple):
    """``check(*tensors)`` sees to all of the tensors that are given but their sizes and strides."""

    given: tuple[bool, ...]
    check: Check
    plain: tuple[Any, ...]
    device: Device


class Member(NamedTuple):
    """A call of a family: what runs it, on what that rests, and the attributes that it depends on."""

    run: Callable[..., Any]
    resolved: Resolved
    read: Collection[str]


class Families:
    """The families of one op whose calls were answered by a plan."""

    def __init__(self, plans: Plans, schema: Schema) -> None:
        kinds = [parameter.kind for parameter in schema.parameters]
        self._plans = plans
        self._op: Op = plans.op
        self._usable = not schema.has_lists  # the guard is made for a tensor a parameter
        self._tensors = tuple([place for place, kind in enumerate(kinds) if kind == "Tensor"])
        self._plain = tuple([place for place, kind in enumerate(kinds) if kind != "Tensor"])
        self._families: tuple[_Family, ...] = ()
        self._plan_like: dict[Hashable, Plan] = {}

    def clear(self) -> None:
        """Forget every family."""
        self._families = ()
        self._plan_like = {}

    def add(self, values: tuple[Any, ...], device: Device) -> None:
        """Let calls of other sizes be answered as this one was, of tensors that need no gradient."""
        tensors = [values[place] for place in self._tensors]
        present = [tensor for tensor in tensors if tensor is not None]
        check = kind_guard(present) if present and self._usable else None
        if check is None or self._of(values) is not None:
            return
        plain = tuple([free_integer(values[place]) or values[place] for place in self._plain])
        family = _Family(tuple([tensor is not None for tensor in tensors]), check, plain, device)
        self._families = (family, *self._families)[:MOST_FAMILIES]

    def member(self, values: tuple[Any, ...]) -> Member | None:
        """The answer to a call of these values; None where the miss must see to it, faults included.

        A value of another type than the schema says is of no family.
        """
        if not self._families or dispatch_modes() or forward_level._current_level >= 0 or function_modes():
            return None
        family = self._of(values)
        if family is None or not all(_ordinary(values[place]) for place in self._tensors):
            return None
        if family.device.type == "cuda" and stream_capturing():
            return None
        try:
            return self._resized(values, family.device)
        except Exception:  # the miss meets it again, and tells it as it must be told
            return None

    def _of(self, values: tuple[Any, ...]) -> _Family | None:
        tensors = [values[place] for place in self._tensors]
        given = tuple([tensor is not None for tensor in tensors])
        present = [tensor for tensor in tensors if tensor is not None]
        # torch's guard ends the process when it is given a nested tensor
        if not all(type(tensor) in PLAIN and not tensor.is_nested for tensor in present):
            return None
        plain = [values[place] for place in self._plain]
        for family in self._families:
            if family.given == given and all(map(same, plain, family.plain)) and family.check(*present):
                return family
        return None

    def _resized(self, values: tuple[Any, ...], device: Device) -> Member | None:
        op, plans = self._op, self._plans
        arguments = op.specs(values).watched()
        problem = op.pose(arguments)
        choice = undoubted_choice(plans.situation(problem, device))
        candidate = None if choice is None else choice.candidate
        if choice is None or candidate is None or plans.failures:
            return None
        implementation = candidate.implementation
        if not implementation.deterministic or not implementation.capturable:
            return None
        key = id(implementation), tuple([(name, exact(value)) for name, value in candidate.config.items()])
        plan = plans.from_memory(candidate, problem, arguments, device, self._plan_like.get(key))
        if plan is None:
            return None
        self._remember(key, plan)
        narrow = any(True for _ in implementation.unsupported(problem.misaligned(), device))
        conditions = (aligned,) if narrow else ()
        resolved = Resolved(choice, plan.call, problem, None, plan, (), conditions, untuned=choice.step == "default")
        run = counting_writes(plan.call, op.parsed) if op.parsed.mutates else plan.call
        return Member(run, resolved, arguments.read | op.fake_reads)

    def _remember(self, key: Hashable, plan: Plan) -> None:
        if key not in self._plan_like:
            if len(self._plan_like) >= MOST_FAMILIES:
                self._plan_like = {}
            self._plan_like[key] = plan


def _ordinary(tensor: Any) -> bool:
    """Whether a tensor that may be left out has elements and memory, is row-major and starts at a multiple of 16."""
    if tensor is None:
        return True
    address = tensor.data_ptr()
    return bool(address and not address % FULL_ALIGNMENT and tensor.is_contiguous())

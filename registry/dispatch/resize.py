"""Another size of a call that was answered before: what a size cannot change is not asked again.

A family is all calls that differ in sizes alone: tensors of the same kinds and dtypes, row-major and aligned, without
gradient, and the same attributes but for integers. For a member the problem is posed, the choice made, ``unsupported``
and the space asked, and the launch and the outputs evaluated with its own plain integers, as in a miss; the run is
bound to what is loaded. Whatever is out of the ordinary is left to the miss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ..arguments.schema import Schema
from ..arguments.specs import Argument, Arguments, Watched
from ..contract import Op
from ..device import Device
from .hit.family import Specs, family_of
from .hit.guards import aligned
from .hit.table import Unpacked
from .plans.plan import Candidate, Plan
from .resolve.candidates import Plans, Resolved
from .resolve.undoubted import Undoubted
from .torch_side.situation import counting_writes
from .torch_side.torch_private import dispatch_modes, forward_level, function_modes, stream_capturing

MOST_FAMILIES = 32
"""Per op: dtypes, devices, attributes and which optional tensors are given."""


class _Family:
    """``plans`` holds one of each candidate that has answered a call of the family."""

    __slots__ = ("device", "plans", "specs", "undoubted")

    def __init__(self, specs: Specs, device: Device) -> None:
        self.specs = specs
        self.device = device
        self.plans: dict[Hashable, Plan] = {}
        self.undoubted: Undoubted | None = None


class Member(NamedTuple):
    """A call of a family: what runs it, on what that rests, and the attributes that it depends on."""

    run: Callable[..., Any]
    resolved: Resolved
    read: Collection[str]


class Families:
    """The families of one op whose calls were answered by a plan."""

    def __init__(self, plans: Plans, schema: Schema) -> None:
        self._plans = plans
        self._op: Op = plans.op
        self._schema = schema
        self._mutates = schema.mutates
        self._families: tuple[_Family, ...] = ()

    def clear(self) -> None:
        """Forget every family."""
        self._families = ()

    def add(self, values: tuple[Any, ...], device: Device) -> None:
        """Let calls of other sizes be answered as this one was, of tensors that need no gradient."""
        if any(family.specs(*values) is not None for family in self._families):
            return
        specs = family_of(self._schema, values)
        if specs is not None:
            self._families = (_Family(specs, device), *self._families)[:MOST_FAMILIES]

    def member(self, values: tuple[Any, ...], entries: Callable[[], Iterable[Unpacked]]) -> Member | None:
        """The answer to a call of these values; None where the miss must see to it, faults included.

        A value of another type than the schema says is of no family. ``entries()`` are those of the first tensor's
        shape: one that was made for such a call in another state of torch has its answer.
        """
        if not self._families or dispatch_modes() or forward_level._current_level >= 0 or function_modes():
            return None
        try:
            for family in self._families:
                specs = family.specs(*values)
                if specs is not None:
                    return self._resized(family, specs, entries())
        except Exception:  # the miss meets it again, and tells it as it must be told
            return None
        return None

    def _resized(self, family: _Family, specs: dict[str, Argument], entries: Iterable[Unpacked]) -> Member | None:
        op, plans, device = self._op, self._plans, family.device
        if plans.failures or (device.type == "cuda" and stream_capturing()):
            return None
        for *_, known in entries:
            if _answers(known, specs):
                return self._member(known, known.plan.signature.arguments.read)
        arguments = Arguments(op.name, Watched(specs, set()))
        problem = op.pose(arguments, ordinary=True)
        if family.undoubted is None:
            family.undoubted = Undoubted(plans.situation(problem, device))
        found = family.undoubted.choice(problem)
        if found is None or (candidate := found.choice.candidate) is None:
            return None
        implementation = candidate.implementation
        if not implementation.deterministic or not implementation.capturable:
            return None
        key = _key(candidate)
        plan = plans.from_memory(candidate, problem, arguments, device, family.plans.get(key))
        if plan is None:
            return None
        _remember(family, key, plan)
        conditions = (aligned,) if found.narrow else ()
        untuned = found.choice.step == "default"
        resolved = Resolved(found.choice, plan.call, problem, None, plan, found.misses, conditions, untuned=untuned)
        return self._member(resolved, arguments.read)

    def _member(self, resolved: Resolved, read: frozenset[str]) -> Member:
        run = counting_writes(resolved.run, self._op.parsed) if self._mutates else resolved.run
        return Member(run, resolved, read | self._op.fake_reads)


def _answers(known: Resolved, specs: Mapping[str, Argument]) -> bool:
    """Whether what was resolved is of a call of these specs without a gradient, and rests on nothing else."""
    plan = known.plan
    if plan is None or known.makeshift or not {aligned}.issuperset(known.conditions):
        return False
    arguments = plan.signature.arguments
    return not arguments.gradient and arguments.all == specs


def _key(candidate: Candidate) -> Hashable:
    values = candidate.config.values()
    # 1, 1.0 and True are equal
    return id(candidate.implementation), *values, *map(type, values)


def _remember(family: _Family, key: Hashable, plan: Plan) -> None:
    plans = family.plans
    if key not in plans:
        if len(plans) >= MOST_FAMILIES:
            plans.clear()
        plans[key] = plan

"""Another size of a call that was answered before: what a size cannot change is not asked again.

A family is all calls that differ in sizes alone: tensors of the same kinds and dtypes, row-major and aligned, without
gradient, and the same attributes but for integers. For a member the problem is posed, the choice made, ``unsupported``
and the space asked, and the launch and the outputs evaluated with its own plain integers, as in a miss; the run is
bound to what is loaded. Whatever is out of the ordinary is left to the miss.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from ..arguments.schema import Schema
from ..arguments.specs import Argument, Arguments
from ..contract import Op
from ..device import Device
from .hit.call_parts import CallParts
from .hit.family import Specs, family_of
from .hit.guards import aligned
from .hit.table import Table, Unpacked
from .plans.plan import Candidate, Draft, Plan
from .resolve.candidates import Plans
from .resolve.resolved import Resolved, resized
from .resolve.undoubted import Undoubted
from .torch_side.situation import counting_writes
from .torch_side.torch_private import stream_capturing

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


Member = tuple[Callable[..., Any], Resolved, frozenset[str]]
"""A call of a family: what runs it, on what that rests, and the attributes that it depends on."""


class Families:
    """The families of one op whose calls were answered by a plan; ``known`` are those with the latest first."""

    def __init__(self, plans: Plans, schema: Schema) -> None:
        self.known: tuple[_Family, ...] = ()
        self._plans = plans
        self._op: Op = plans.op
        self._schema = schema
        self._parts = CallParts(schema)
        self._mutates = schema.mutates

    def clear(self) -> None:
        """Forget every family."""
        self.known = ()

    def add(self, values: tuple[Any, ...], device: Device) -> None:
        """Let calls of other sizes be answered as this one was, of tensors that need no gradient."""
        if any(family.specs(*values) is not None for family in self.known):
            return
        specs = family_of(self._schema, values)
        if specs is not None:
            self.known = (_Family(specs, device), *self.known)[:MOST_FAMILIES]

    def member(self, values: tuple[Any, ...], table: Table) -> Member | None:
        """The answer to a call of these values; None where the miss must see to it, faults included.

        A value of another type than the schema says is of no family. An entry of ``table`` that was made for such a
        call in another state of torch has its answer.
        """
        try:
            for family in self.known:
                specs = family.specs(*values)
                if specs is not None:
                    found = self._resized(family, specs, table.now.shapes.get(self._parts.shape(values), ()))
                    if found is None:
                        return None
                    resolved, read = found
                    run = counting_writes(resolved.run, self._op.parsed) if self._mutates else resolved.run
                    return run, resolved, read | self._op.fake_reads
        except Exception:  # the miss meets it again, and tells it as it must be told
            return None
        return None

    def _resized(
        self, family: _Family, specs: dict[str, Argument], entries: Iterable[Unpacked]
    ) -> tuple[Resolved, frozenset[str]] | None:
        op, plans, device = self._op, self._plans, family.device
        if plans.failures or (device.type == "cuda" and stream_capturing()):
            return None
        for *_, known in entries:
            if _answers(known, specs):
                return known, known.plan.signature.arguments.read
        arguments = Arguments(op.name, specs, seen=set())
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
        like = family.plans.get(key)
        plan = None if like is None else like.resized(problem, arguments, device, plans.sizeless)
        if plan is None:
            plan = Draft.of(op, candidate, problem, arguments, device).from_memory(plans.sizeless)
            if plan is None:
                return None
            _remember(family, key, plan)
        conditions = (aligned,) if found.narrow else ()
        untuned = found.choice.step == "default"
        resolved = resized(found.choice, plan, found.misses, conditions, untuned)
        return resolved, arguments.read


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

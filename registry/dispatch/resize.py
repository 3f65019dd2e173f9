"""Answers to another size of an earlier call, without the steps of a miss that do not depend on sizes.

A family is all calls that differ in sizes alone: their tensors have equal kinds, dtypes, layouts and alignments,
autograd records all of them or none, and their attributes are equal except for integers. For a call of a family the
problem is posed, the choice made, ``unsupported`` and the space asked, and launch and outputs evaluated with its own
plain integers, as in a miss; the run is bound to loaded kernels. Every other call is left to the miss.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ..arguments.schema import Schema
from ..arguments.specs import Argument, Arguments
from ..arguments.traits import FamilyTraits, OrdinaryTraits
from ..contract import Op
from ..device import Device
from ..problem import Problem, Value
from .hit.entries import EntryMaker, FreeValue
from .hit.family import FamilyGuard, family_of
from .hit.guards import AlignedLike, Condition, aligned
from .hit.table import Table
from .plans.plan import Candidate, Draft, Plan
from .resolve.candidates import Plans
from .resolve.first_choice import FirstChoice
from .resolve.resolution import Choice
from .resolve.resolved import Resolved, resized
from .resolve.situation import moved_along, runs_verified_code
from .shared_memory import is_apart
from .torch_side.gradients import CallGradients
from .torch_side.states import counting_writes
from .torch_side.torch_private import stream_capturing

MOST_FAMILIES = 32
"""The most families per op; they differ in dtypes, devices, attributes and in which optional tensors are given."""

_MOST_STRIDED = 8
"""The most families of an op that demand equal strides of a tensor: where strides change, each call makes another."""

_ALIGNED: tuple[Condition, ...] = (aligned,)


class _Family:
    """One family. ``plans`` holds a plan of each candidate that has answered a call of it, by the candidate's id.

    ``gradient``: autograd records its calls. ``told``: what its calls' traits are told, see ``Op.told``.
    """

    __slots__ = (
        "aligned",
        "device",
        "first_choice",
        "free",
        "grad",
        "gradient",
        "plans",
        "specs",
        "strided",
        "told",
        "traits",
    )

    def __init__(self, guard: FamilyGuard, device: Device, gradient: bool, told: Mapping[str, Value] | None) -> None:
        self.specs = guard.specs
        self.aligned = guard.aligned
        self.strided = guard.strided
        self.traits = OrdinaryTraits if guard.aligned and guard.row_major else FamilyTraits
        self.told = told
        self.device = device
        self.gradient = gradient
        self.grad = gradient if guard.requires_grad else None
        """The grad mode that the calls need, None for both."""
        self.plans: dict[int, Plan] = {}
        self.first_choice: FirstChoice | None = None
        self.free: dict[frozenset[str], Sequence[FreeValue]] = {}
        """Placeholders for the attributes that an answer does not depend on, by those that it depends on."""


Member = tuple[Callable[..., Any], Resolved, Hashable, Sequence[FreeValue], bool | None]
"""The answer to a call of a family: its run and Resolved, and for the table entry the shape by which it is found, the
placeholders for attributes, and the grad mode."""


class Families:
    """The families of one op whose calls were answered by a plan, in ``known``, the latest first."""

    def __init__(self, plans: Plans, schema: Schema, entries: EntryMaker, gradients: CallGradients) -> None:
        self.known: tuple[_Family, ...] = ()
        self._plans = plans
        self._op: Op = plans.op
        self._schema = schema
        self._entries = entries
        self._gradients = gradients
        self._mutates = schema.mutates

    def clear(self) -> None:
        """Forget every family."""
        self.known = ()

    def add(self, values: tuple[Any, ...], arguments: Arguments, device: Device) -> None:
        """Add the family of this call."""
        gradient = arguments.gradient
        if any(family.specs(*values) is not None for family in self.known):
            return
        guard = family_of(self._schema, values, gradient)
        if guard is None:
            return
        known = (_Family(guard, device, gradient, self._op.told(arguments)), *self.known)
        oldest = {id(family) for family in [one for one in known if one.strided][_MOST_STRIDED:]}
        self.known = tuple([family for family in known if id(family) not in oldest])[:MOST_FAMILIES]

    def member(self, values: tuple[Any, ...], table: Table) -> Member | None:
        """The answer to a call of these values; None if the miss must answer, or raise.

        A value of another type than the schema's is in no family. If ``table`` has an entry that was made for such a
        call in another state of torch, its answer is used.
        """
        try:
            for family in self.known:
                specs = family.specs(*values)
                if specs is not None:
                    if self._mutates and not is_apart(self._schema, values):
                        return None
                    return self._member(family, specs, values, table)
        except Exception:  # the miss meets the fault again, and handles it
            return None
        return None

    def _member(
        self, family: _Family, specs: dict[str, Argument], values: tuple[Any, ...], table: Table
    ) -> Member | None:
        if self._plans.failures or (family.device.type == "cuda" and stream_capturing()):
            return None
        shape = self._entries.parts.shape(values)
        entries = table.now.shapes.get(shape)
        known = next((one[-1] for one in entries if _answers(one[-1], specs, family)), None) if entries else None
        if known is None:
            arguments = Arguments(self._op.name, specs, family.gradient, set())
        else:
            arguments = known.plan.signature.arguments
        resolved = known or self._resized(family, arguments)
        if resolved is None:
            return None
        read = arguments.read
        free = family.free.get(read)
        if free is None:
            free = family.free[read] = self._entries.free(values, read | self._op.fake_reads)
        return self._as_operation(resolved.run, family), resolved, shape, free, family.grad

    def _as_operation(self, run: Callable[..., Any], family: _Family) -> Callable[..., Any]:
        """``run`` with torch's version counters and gradient."""
        if self._mutates:
            run = counting_writes(run, self._schema)
        return self._gradients.recording(run) if family.gradient else run

    def _resized(self, family: _Family, arguments: Arguments) -> Resolved | None:
        op, plans, device = self._op, self._plans, family.device
        problem = op.pose_in_family(arguments, family.traits, family.told)
        if family.first_choice is None:
            family.first_choice = FirstChoice(plans.situation(problem, device))
        found = family.first_choice.choice(problem)
        if found is None or (candidate := found.choice.candidate) is None:
            return None
        implementation = candidate.implementation
        if not implementation.deterministic or not implementation.capturable:
            return None
        plan = self._plan(family, found.choice, candidate, problem, arguments)
        if plan is None:
            return None
        conditions = (_ALIGNED if found.narrow else ()) if family.aligned else (AlignedLike.of(arguments),)
        return resized(found.choice, plan, found.misses, conditions)

    def _plan(
        self, family: _Family, choice: Choice, candidate: Candidate, problem: Problem, arguments: Arguments
    ) -> Plan | None:
        """The plan of a choice; None if it needs something compiled or loaded, or if its code is not verified."""
        op, device, any_size_runs, decision = self._op, family.device, self._plans.any_size_runs, choice.decision
        if op.transfers and decision is not None and moved_along(op, decision, problem):
            draft = Draft.of(op, candidate, problem, arguments, device)
            if not runs_verified_code(op, decision, draft):
                return None
        like = family.plans.get(id(candidate))
        plan = None if like is None else like.resized(problem, arguments, device, any_size_runs)
        if plan is not None:
            return plan
        draft = Draft.of(op, candidate, problem, arguments, device)
        plan = draft.from_memory(any_size_runs)
        if plan is None and candidate.implementation.any_size and not draft.variants():
            plan = draft.compiled({}, any_size_runs)  # static dimensions differ: a run of its own, without compiling
        if plan is not None:
            if len(family.plans) >= MOST_FAMILIES:
                family.plans.clear()
            # the plan holds the candidate, so that its id stays unique
            family.plans[id(candidate)] = plan
        return plan


def _answers(known: Resolved, specs: Mapping[str, Argument], family: _Family) -> bool:
    """True if ``known`` was resolved for a call of these specs and gradient, with no condition but alignment."""
    plan = known.plan
    if plan is None or known.makeshift:
        return False
    if not all(condition is aligned or isinstance(condition, AlignedLike) for condition in known.conditions):
        return False
    arguments = plan.signature.arguments
    return arguments.gradient is family.gradient and arguments.all == specs

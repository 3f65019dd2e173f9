"""Answers to another size of an earlier call, without the steps of a miss that do not depend on sizes.

A family is all calls that differ in sizes alone: their tensors have equal kinds, dtypes, layouts and alignments,
autograd records all of them or none, and their attributes are equal except for integers. For a call of a family the
problem is posed, the choice made, ``unsupported`` and the space asked, and launch and outputs evaluated with its own
plain integers, as in a miss; the run is bound to loaded kernels. Every other call is left to the miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ..arguments.schema import Schema
from ..arguments.specs import Arguments
from ..arguments.traits import FamilyTraits, OrdinaryTraits
from ..contract import Op
from ..device import Device
from ..problem import Problem
from .hit.entries import EntryMaker, FreeValue
from .hit.family import FamilyGuard, family_of
from .hit.guards import AlignedLike, Condition, aligned
from .hit.table import Table, Unpacked
from .plans.plan import Candidate, Draft
from .plans.resizing import Resized, Resizing
from .resolve.candidates import Plans
from .resolve.first_choice import FirstChoice
from .resolve.resolved import ResizedAnswer, Resolved
from .resolve.situation import moved_along, runs_verified_code
from .shared_memory import is_apart
from .torch_side.gradients import CallGradients
from .torch_side.states import counting_writes
from .torch_side.torch_private import TorchCheck, stream_capturing

MOST_FAMILIES = 32
"""The most families per op; they differ in dtypes, devices, attributes and in which optional tensors are given."""

_MOST_STRIDED = 8
"""The most families of an op that demand equal strides of a tensor: where strides change, each call makes another."""

_ALIGNED: tuple[Condition, ...] = (aligned,)


class CallFamily:
    """One family. ``plans`` has, by its id, each candidate that has answered a call of it.

    ``forms`` are those of its tensors, whether or not they require gradients; ``alone``: no other known family has
    these. ``gradient``: autograd records its calls. ``plain``: a plan's function is all that runs, without gradients
    and without version counters. ``pose`` returns the problem that a call's arguments pose.
    """

    __slots__ = (
        "alone",
        "device",
        "first_choice",
        "forms",
        "free",
        "grad",
        "gradient",
        "narrow",
        "on_gpu",
        "plain",
        "plans",
        "pose",
        "row_major",
        "specs",
        "strided",
        "usual",
    )

    def __init__(self, op: Op, guard: FamilyGuard, device: Device, arguments: Arguments, entries: EntryMaker) -> None:
        gradient = arguments.gradient
        self.specs = guard.specs
        self.forms = tuple([form._replace(requires_grad=False) for form in guard.forms])
        self.alone = True
        self.plain = not (op.parsed.mutates or gradient)
        self.on_gpu = device.type == "cuda"
        self.row_major = guard.row_major
        usual = () if guard.aligned else (AlignedLike.of(arguments),)
        distinct = len(guard.forms) if guard.distinct else 0
        self.usual, self.narrow = (
            (conditions, entries.check_maker(conditions, distinct)) for conditions in (usual, usual or _ALIGNED)
        )
        """The conditions of an entry and the maker of its guard; ``narrow``: for plans that need aligned tensors."""
        self.strided = guard.strided
        self.pose = op.posing_in_family(
            OrdinaryTraits if guard.aligned and guard.row_major else FamilyTraits, op.told(arguments)
        )
        self.device = device
        self.gradient = gradient
        self.grad = gradient if guard.requires_grad else None
        """The grad mode that the calls need, None for both."""
        self.plans: dict[int, Resizing] = {}
        self.first_choice: FirstChoice | None = None
        self.free: tuple[frozenset[str] | None, Sequence[FreeValue]] = (None, ())
        """The names of the attributes that the latest answer depends on, and placeholders for all others."""


CheckMaker = Callable[..., TorchCheck]
"""``make(*tensors)``: the guard of a table entry, see ``EntryMaker.check_maker``."""

FamilyAnswer = tuple[Callable[..., Any], Resolved, CheckMaker, bool]
"""A plan's function, its Resolved, the maker of its entry's guard, and whether the outputs are to be checked."""

Member = tuple[Callable[..., Any], Resolved, CheckMaker, bool, Hashable, Sequence[FreeValue], CallFamily]
"""The answer to a call of a family, and for the table entry the shape by which it is found, the placeholders for
attributes, and the family."""


class Families:
    """The families of one op whose calls were answered by a plan, in ``known``, the latest first."""

    def __init__(self, plans: Plans, schema: Schema, entries: EntryMaker, gradients: CallGradients) -> None:
        self.known: tuple[CallFamily, ...] = ()
        self._plans = plans
        self._failures = plans.failures
        self._op: Op = plans.op
        self._schema = schema
        self._entries = entries
        self._shape = entries.parts.shape
        self._key = entries.parts.key
        self._compared = entries.parts.compared
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
        known = (CallFamily(self._op, guard, device, arguments, self._entries), *self.known)
        oldest = {id(family) for family in [one for one in known if one.strided][_MOST_STRIDED:]}
        self.known = tuple([family for family in known if id(family) not in oldest])[:MOST_FAMILIES]
        forms = Counter(family.forms for family in self.known)
        for family in self.known:
            family.alone = forms[family.forms] == 1

    def member(self, values: tuple[Any, ...], table: Table) -> Member | None:
        """The answer to a call of these values; None if the miss must answer, or raise.

        A value of another type than the schema's is in no family. If ``table`` has an entry that was made for such a
        call in another state of torch, its answer is used.
        """
        try:
            for family in self.known:
                arguments = family.specs(*values)
                if arguments is not None:
                    break
            else:
                return None
            if self._failures.known or (family.on_gpu and stream_capturing()):
                return None
            if self._mutates and not is_apart(self._schema, values):
                return None
            shape = arguments.unrecorded[self._key].shape if self._key else self._shape(values)  # type: ignore[union-attr]
            entries = table.now.shapes.get(shape)
            # an entry of this family would have been a hit; others have equal arguments only where forms are equal
            known = None if entries is None or family.alone else self._answer_in(entries, arguments, values)
            if known is None:
                answer = self._resized(family, arguments)
                if answer is None:
                    return None
                run, resolved, make_check, checked = answer
            else:
                run, resolved, checked = known.run, known, known.checked
                make_check = self._entries.check_maker(known.conditions)
                arguments = known.arguments or arguments
            read, free = family.free
            if arguments.seen != read:
                read = arguments.read
                free = self._entries.free(values, read | self._op.fake_reads)
                family.free = read, free
            if not family.plain:
                run = self._as_operation(run, family)
        except Exception:  # the miss meets the fault again, and handles it
            return None
        return run, resolved, make_check, checked, shape, free, family

    def _answer_in(self, entries: Iterable[Unpacked], arguments: Arguments, values: tuple[Any, ...]) -> Resolved | None:
        """The answer of an entry that was resolved for a call of these arguments, with no condition but alignment.

        Entries with other compared values, of which there may be many, are passed over at once.
        """
        given = self._compared(values)
        alike = (entry[-1] for entry in entries if entry[1] == given)
        return next((known for known in alike if _answers(known, arguments)), None)

    def _as_operation(self, run: Callable[..., Any], family: CallFamily) -> Callable[..., Any]:
        """``run`` with torch's version counters and gradient."""
        if self._mutates:
            run = counting_writes(run, self._schema)
        return self._gradients.recording(run) if family.gradient else run

    def _resized(self, family: CallFamily, arguments: Arguments) -> FamilyAnswer | None:
        problem = family.pose(arguments)
        first_choice = family.first_choice
        if first_choice is None:
            first_choice = family.first_choice = FirstChoice(self._plans.situation(problem, family.device))
        found = first_choice.choice(problem)
        if found is None or (candidate := found.candidate) is None:
            return None
        decision = found.decision
        if decision is not None and not found.stays and moved_along(self._op, decision, problem):
            draft = Draft.of(self._op, candidate, problem, arguments, family.device)
            if not runs_verified_code(self._op, decision, draft):
                return None
        like = family.plans.get(id(candidate))
        resized = None if like is None else like.at(problem, arguments)
        if resized is None and (resized := self._bound(family, candidate, problem, arguments)) is None:
            return None
        conditions, make_check = family.narrow if found.narrow else family.usual
        answer = ResizedAnswer.of(found, conditions, family.pose, arguments, resized)
        return resized[0], answer, make_check, candidate.implementation.returns_outputs

    def _bound(
        self, family: CallFamily, candidate: Candidate, problem: Problem, arguments: Arguments
    ) -> Resized | None:
        """The first plan of a candidate in the family; None if something would have to be compiled or loaded."""
        implementation, device, runs = candidate.implementation, family.device, self._plans.any_size_runs
        if not implementation.deterministic or (family.on_gpu and not implementation.capturable):
            return None
        draft = Draft.of(self._op, candidate, problem, arguments, device)
        plan = draft.from_memory(runs)
        if plan is None and implementation.any_size and not draft.variants():
            plan = draft.compiled({}, runs)  # static dimensions differ: a run of its own, without compiling
        if plan is None:
            return None
        if len(family.plans) >= MOST_FAMILIES:
            family.plans.clear()
        # the plan holds the candidate, so that its id stays unique
        family.plans[id(candidate)] = Resizing(plan, device, runs, row_major=family.row_major)
        return plan.call, lambda *_: plan, None, None


def _answers(known: Resolved, arguments: Arguments) -> bool:
    """True if ``known`` was resolved for a call of these arguments, with no condition but alignment."""
    own = known.arguments
    if (
        own is None
        or own.unrecorded != arguments.unrecorded
        or own.gradient is not arguments.gradient
        or known.makeshift
    ):
        return False
    return all(condition is aligned or isinstance(condition, AlignedLike) for condition in known.conditions)

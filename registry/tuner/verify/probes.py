"""Probes: other problems, sizes and layouts that dispatch may give to a candidate, which must be right there too.

A winner also serves the problems for which nothing nearer is tuned, and calls whose tensors are not aligned or not
contiguous. A candidate that is wrong at one of a few small ones, at a size next to the tuned one, or called by two
threads at once, there or at the tuned size itself, is refused. Each probe runs as a call of its size would: where a run
says ``any_size`` or a kernel is loaded already, that is what runs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...arguments.schema import handed_out, tensors_in, with_tensors
from ...artifact import Artifact
from ...contract import Op, as_tuple
from ...correctness.bounds import holding
from ...correctness.grad_modes import GRAD_MODES, made_in
from ...correctness.numerics import judged
from ...correctness.other_sizes import false_claim
from ...correctness.output_faults import output_faults
from ...correctness.poisoned_layouts import Surrounded, laid_out_within, surrounded
from ...device import Device
from ...dispatch.plans.other_size import at_other_size, bound_by_call
from ...dispatch.plans.plan import Plan, build
from ...dispatch.plans.two_threads import results_of_two_threads
from ...errors import RegistryError
from ...faults.device_faults import out_of_memory
from ...implementation import Tensors
from ...problem import Problem, canonical_json
from ..planning.variants import variants_at
from .own_size import calls_of_two_threads, own_inputs, probes_of_own_size
from .probe_inputs import (
    Probe,
    group_of,
    group_of_other_sizes,
    probes_of_other_sizes,
    probes_of_secret_sizes,
    small_probes,
)
from .session import Session, most_sessions
from .stacked import stacked
from .verdicts import Checks, WrongError
from .verify import check_unchanged

_GROUPS_PART = 1 / 10
"""The part of the device's memory that all kept groups of probes may take."""
_RECENT_GROUPS = 16
"""Groups of probes that are in use: three for each of the problems that are searched at once, and some that many share.
Others are kept while there is room, as long as sessions are, since finalists meet them once more."""
_GROUPS_OF_SESSION = 3
"""Groups that the problem of one session has of its own."""
_OWN_PROBES = 40
"""Times what a call reads and writes that the probes of its own size take."""

_Made = Callable[[Op, Problem, Device], Iterable[Probe]]

_Told = Callable[..., str]
"""The message about a fault, with the remedy that is usual for it."""

TwoThreads = Callable[[Plan, Sequence[tuple[Any, ...]], Device, int], tuple[tuple[Tensors, ...], ...]]
"""Runs a plan in two threads at once, as ``results_of_two_threads`` does."""


class _ForProbe(NamedTuple):
    """A plan for a probe, and how its faults are told."""

    plan: Plan
    told: _Told


class Probes:
    """Checks candidates on the probes of their problem, each candidate once for all problems that share them.

    ``two_threads``: runs a plan in two threads at once.
    """

    secret_sizes = 2
    """How many sizes of a problem are drawn that nobody can foresee."""

    def __init__(self, device: Device, two_threads: TwoThreads = results_of_two_threads) -> None:
        self._device = device
        self._two_threads = two_threads
        self._groups: dict[str, tuple[Probe, ...]] = {}
        """Kept groups, the one that was used last at the end."""
        self._sizes: dict[str, int] = {}
        """The bytes of each group."""
        self._named: dict[str, str] = {}
        """Key of a problem -> the group of its other sizes."""
        self._passed: set[tuple[str, str, int]] = set()
        """Probes that were passed: group, candidate, number of the probe in its group."""
        self._tried: set[tuple[str, str, frozenset[str]]] = set()
        """Candidates that were checked: group, candidate, keys of the variants at hand."""
        self._checked: collections.Counter[tuple[str, str]] = collections.Counter()

    def come_first(self, plan: Plan) -> bool:
        """Whether the candidate is checked before it is timed: it is the first of its implementation.

        The first shows faults of the kernel. Of later candidates those are checked that lead or enter the finals.
        """
        return not self._checked[group_of(plan.op, plan.problem), plan.candidate.implementation.name]

    def come_first_of_own_size(self, plan: Plan, twin: tuple[Plan, Session] | None = None) -> bool:
        """Whether the candidate is the first of its implementation that may be met with the probes of its own size."""
        problem = plan.problem if twin is None else twin[1].problem
        return not self._checked[_own_group(problem), plan.candidate.implementation.name]

    def check(self, plan: Plan, artifacts: Mapping[str, Artifact]) -> None:
        """Run the plan's candidate on the probes of its problem; raises WrongError.

        ``plan`` was bound by a call (``bound_by_call``), and has run. A probe is left out where the candidate says that
        it does not support it, and where its variants are not among ``artifacts`` (by key): nothing is compiled here.
        """
        self.check_group(group_of(plan.op, plan.problem), small_probes, plan, artifacts)
        self.check_group(self._other_sizes(plan), probes_of_other_sizes, plan, artifacts)
        secret = partial(probes_of_secret_sizes, count=self.secret_sizes)
        self.check_group(f"secret sizes of {plan.problem.key}", secret, plan, artifacts)

    def check_own_size(
        self,
        plan: Plan,
        session: Session,
        artifacts: Mapping[str, Artifact],
        twin: tuple[Plan, Session] | None = None,
    ) -> None:
        """Run the plan's candidate on the probes of its own size; raises WrongError.

        ``twin``: the candidate's plan on the problem's twin, for all but calls of two threads, which meet on both. The
        plans were bound by a call.
        """
        if twin is not None:
            self.check_as_held(plan, session)
            plan, session = twin
        group = _own_group(session.problem)
        kept = _OWN_PROBES * session.working_set <= _GROUPS_PART * self._device.memory_bytes
        if not kept and self._checked[group, plan.candidate.implementation.name]:
            # to lay them out anew takes seconds: other configurations of the implementation read layouts as this one
            self.check_as_held(plan, session)
        else:
            self.check_group(group, lambda *_: probes_of_own_size(session), plan, artifacts, kept=kept)

    def check_as_held(self, plan: Plan, session: Session) -> None:
        """Run the plan's candidate in two threads on the session's inputs; raises WrongError."""
        checks, probe = Checks(), own_inputs(session)

        def meet() -> None:
            self._check_two_threads(plan, probe, checks)
            checks.settle()

        _guarded(meet, partial(_told, probe))

    def _check_two_threads(self, plan: Plan, probe: Probe, checks: Checks) -> None:
        """Calls of two threads at once, on the probe's inputs and on those beside it, where memory allows both."""
        calls, pair = calls_of_two_threads(plan, self._device), (probe, probe.beside)
        op, probes = plan.op, [each for each in pair if each is not None]

        def told(fault: str) -> str:
            remedy = "Memory that calls share must be scratch, and inputs stay as they are"
            return _told(probe, f"called by two threads at once it is wrong: {fault}. {remedy}")

        if not calls:
            return
        found = self._two_threads(plan, [each.values for each in probes], self._device, calls)
        for each, made in zip(probes, found, strict=True):
            for results in stacked(made):
                checks.add(holding(each.bounds, results), "wrong_result", partial(_why_any, op, each, made, told))
            check_unchanged(op, each.values, each.pristine, checks)

    def _other_sizes(self, plan: Plan) -> str:
        key = plan.problem.key
        if key not in self._named:
            self._named[key] = group_of_other_sizes(plan.op, plan.problem, self._device)
        return self._named[key]

    def check_group(
        self, group: str, made: _Made, plan: Plan, artifacts: Mapping[str, Artifact], *, kept: bool = True
    ) -> None:
        """Run the plan's candidate on the probes that ``made`` returns, those of a group; raises WrongError.

        ``kept``: they are made once, and stay for the next candidates as long as there is room.
        """
        if group in self._groups:
            self._groups[group] = self._groups.pop(group)
        tried = group, plan.candidate.key, frozenset(artifacts)
        if tried in self._tried:
            return
        checks, ran, at_homes = Checks(), list[tuple[str, str, int]](), dict[int, Plan]()
        try:
            probes = self._of(group, made, plan) if kept else made(plan.op, plan.problem, self._device)
            for place, probe in enumerate(probes):
                passed = group, plan.candidate.key, place
                if passed not in self._passed and self._run(plan, probe, artifacts, checks, at_homes):
                    ran.append(passed)
                if not kept:
                    checks.settle()
            checks.settle()
        except Exception:
            # the candidate may have written to the probes' inputs
            self._groups.pop(group, None)
            raise
        finally:
            self._checked[group, plan.candidate.implementation.name] += bool(ran)
        self._passed.update(ran)
        self._tried.add(tried)

    def forget(self) -> bool:
        """Drop all kept probes; True if there were any."""
        held = bool(self._groups)
        self._groups.clear()
        self._sizes.clear()
        return held

    def _of(self, group: str, made: _Made, plan: Plan) -> tuple[Probe, ...]:
        """A group's probes; one that takes more than all kept groups may is made again for the next candidate."""
        if group in self._groups:
            return self._groups[group]
        probes = tuple(made(plan.op, plan.problem, self._device))
        size = _nbytes(probes)
        room = _GROUPS_PART * self._device.memory_bytes - size
        if room >= 0:
            self._make_room(room)
            self._groups[group], self._sizes[group] = probes, size
        return probes

    def _make_room(self, most: float) -> None:
        """Drop groups, oldest first, until one more has a place and at most ``most`` bytes are held.

        Of those in use the largest are dropped for their bytes; any of them may be needed next.
        """
        while len(self._groups) >= max(_RECENT_GROUPS, _GROUPS_OF_SESSION * most_sessions()):
            self._drop(next(iter(self._groups)))
        while self._groups and sum(self._sizes.values()) > most:
            unused = len(self._groups) > _RECENT_GROUPS
            self._drop(next(iter(self._groups)) if unused else max(self._groups, key=self._sizes.__getitem__))

    def _drop(self, group: str) -> None:
        del self._groups[group], self._sizes[group]

    def _run(
        self, plan: Plan, probe: Probe, artifacts: Mapping[str, Artifact], checks: Checks, at_homes: dict[int, Plan]
    ) -> bool:
        """Whether the candidate has run on the probe; ``at_homes``: its plans by the identity of a probe's home."""
        try:
            if probe.home is not None:
                found_home = self._at_home(plan, probe.home, artifacts, checks, at_homes)
                if found_home is None:
                    return False
                plan = found_home
            found = self._bound(plan, probe, artifacts)
        except RegistryError:
            # dispatch goes on with the next candidate when a plan cannot be built
            return False
        except WrongError as fault:
            raise WrongError(fault.status, _told(probe, fault.message)) from None
        if found is None:
            return False
        there, told = found

        def meet() -> None:
            _check(there, probe, checks, told)
            if probe.beside is not None:
                _check(there, probe.beside, checks, told)
                self._check_two_threads(there, probe, checks)

        return _guarded(meet, told)

    def _at_home(
        self, plan: Plan, home: Probe, artifacts: Mapping[str, Artifact], checks: Checks, at_homes: dict[int, Plan]
    ) -> Plan | None:
        """The candidate's plan for a probe's home, on which it has run; None if it would have to compile."""
        if id(home) not in at_homes:
            if not self._is_compiled(plan, home, artifacts):
                return None
            bound = bound_by_call(plan.op, plan.candidate, home.problem, home.arguments, self._device, artifacts)
            _check(bound, home, checks, partial(_told, home))
            at_homes[id(home)] = bound
        return at_homes[id(home)]

    def _bound(self, plan: Plan, probe: Probe, artifacts: Mapping[str, Artifact]) -> _ForProbe | None:
        """The candidate's plan for a probe as a call gets it; None if it refuses the probe or would have to compile."""
        if not self._is_compiled(plan, probe, artifacts):
            return None
        reused = at_other_size(plan, probe.problem, probe.arguments, self._device)
        if reused is None or reused.run is not plan.run or probe.is_own:
            return _ForProbe(reused or self._anew(plan, probe, artifacts), partial(_told, probe))

        def told(fault: str, remedy: str = "") -> str:
            # who is wrong by chance is right the next time, and that is no matter of what was bound before
            if not _is_right(self._anew(plan, probe, artifacts), probe) or _is_right(reused, probe):
                return _told(probe, fault, remedy)
            return false_claim(plan.candidate.implementation.name, plan.problem, probe.problem, probe.which, fault)

        return _ForProbe(reused, told)

    def _is_compiled(self, plan: Plan, probe: Probe, artifacts: Mapping[str, Artifact]) -> bool:
        wanted = variants_at(plan.op, plan.candidate, probe.problem, probe.arguments, self._device)
        return wanted is not None and all(variant.key in artifacts for variant in wanted)

    def _anew(self, plan: Plan, probe: Probe, artifacts: Mapping[str, Artifact]) -> Plan:
        return build(plan.op, plan.candidate, probe.problem, probe.arguments, self._device, artifacts)


def _guarded(meet: Callable[[], None], told: _Told) -> bool:
    """Whether a candidate could meet a probe; raises WrongError for what it raises, unless memory failed it."""
    try:
        meet()
    except RegistryError:
        return False
    except WrongError as fault:
        raise WrongError(fault.status, told(fault.message)) from None
    except Exception as fault:
        if out_of_memory(fault):
            return False
        remedy = "; what it cannot run, unsupported() has to say"
        raise WrongError("error", told(f"it raises {type(fault).__name__}: {fault}", remedy)) from fault
    return True


def _own_group(problem: Problem) -> str:
    """The key of the probes of a problem's own size."""
    return canonical_json({"own size": problem.key, "op": problem.op})


def _nbytes(probes: Sequence[Probe]) -> int:
    held = {id(each): each.nbytes for probe in probes for each in probe.held}
    return sum(held.values())


def _check(plan: Plan, probe: Probe, checks: Checks, told: _Told) -> None:
    if not plan.op.parsed.mutates:
        for output in probe.outputs:
            output.poison()
        _check_on(plan, probe, probe.outputs, (), checks, told)
        return
    # an op that mutates is given copies with poisoned memory beside them, to find reads and writes beyond the end
    for nan_beside in (False, True):
        outputs = tuple(surrounded(spec) for spec in plan.signature.outputs.values())
        _check_on(plan, probe, outputs, _copies(probe, nan_beside), checks, told)


def _check_on(
    plan: Plan,
    probe: Probe,
    outputs: tuple[Surrounded, ...],
    copies: Sequence[Surrounded],
    checks: Checks,
    told: _Told,
) -> None:
    """Run once into poisoned outputs, on the probe's arguments or on ``copies`` of its tensors, and add the checks."""
    op, functional = plan.op, plan.candidate.implementation.returns_outputs
    into = () if functional else outputs
    scratch = tuple(surrounded(spec) for spec in plan.signature.scratch.values())
    given = tuple(each.tensor for each in into)
    copy = iter(copies)
    values = with_tensors(probe.values, lambda _: next(copy).tensor) if copies else probe.values
    values = values if op.parsed.mutates else made_in(probe.mode, op, values)
    arguments, space = plan.prepared.extend(values), [each.tensor for each in scratch]
    with GRAD_MODES[probe.mode]():
        returned = plan.run(handed_out(given), handed_out(arguments), handed_out(space))
    found = as_tuple(returned) if functional else given
    if faults := output_faults(found, plan.signature.outputs, values):
        raise WrongError("wrong_result", "; ".join(faults))
    results = op.results(found, values)
    checks.add(holding(probe.bounds, results), "wrong_result", partial(_why, op, probe, results, told))
    for name, tensors in (("outputs", into), ("arguments", copies), ("scratch", scratch)):
        beside = _told(probe, f"it writes outside its {name}")
        checks.add([each.untouched() for each in tensors], "wrong_result", beside)
    check_unchanged(op, values, probe.pristine, checks)


def _copies(probe: Probe, nan_beside: bool) -> list[Surrounded]:
    return [
        laid_out_within(tensor, probe.layout, place, nan_beside=nan_beside)
        for place, tensor in enumerate(tensors_in(probe.pristine))
    ]


def _why(op: Op, probe: Probe, results: Tensors, told: _Told) -> str:
    fault = judged(op, probe.problem, results, probe.pristine).message
    return told(fault) if fault else ""


def _why_any(op: Op, probe: Probe, calls: Sequence[Tensors], told: _Told) -> str:
    return next(filter(None, (_why(op, probe, results, told) for results in calls)), "")


def _is_right(plan: Plan, probe: Probe) -> bool:
    """Whether a plan is right on a probe and on the one beside it."""
    checks = Checks()
    try:
        for each in filter(None, (probe, probe.beside)):
            _check(plan, each, checks, lambda fault, *_: fault)
        checks.settle()
    except Exception:  # a stranger's code may raise anything
        return False
    return True


def _told(probe: Probe, fault: str, remedy: str = "") -> str:
    if probe.is_usual:
        return f"right here, but not in every call that dispatch may give to it: {fault}{remedy}"
    return f"right here, but not for {probe}, where dispatch may run it: {fault}{remedy}"

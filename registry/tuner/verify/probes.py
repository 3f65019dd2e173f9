"""Probes: other problems and layouts that dispatch may give to a candidate, which must be right there too.

A winner also serves the problems for which nothing nearer is tuned, and calls whose tensors are not aligned or not
contiguous. A candidate that is wrong at one of a few small ones is refused before it is timed.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...arguments.schema import tensors_in, with_tensors
from ...artifact import Artifact
from ...contract import Op, as_tuple
from ...correctness.bounds import Bounds, bounds_of
from ...correctness.numerics import compare, own_error, reference64
from ...correctness.output_faults import output_faults, poison
from ...correctness.poisoned_layouts import (
    LAYOUTS,
    Layout,
    Surrounded,
    is_contiguous_by_another_name,
    laid_out,
    laid_out_within,
    surrounded,
)
from ...device import Device
from ...dispatch.plans.plan import Plan, build
from ...errors import RegistryError
from ...problem import Arguments, Problem, canonical_json
from ..planning.variants import variants_at
from .session import clone
from .verdicts import Checks, WrongError
from .verify import check_unchanged

_SIZES = (1, 37)
"""Sizes of a probe's last dynamic dimension: one, and a prime, which is no multiple of any block."""
_LARGER_SIZES = (4099, 1031, 257)
"""Beside them the largest of these primes that costs little: more than a block."""
_OTHER_SIZES = (3, 5, 2)
"""Sizes of the dynamic dimensions before the last."""
_MOST_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
_MEMORY_PART = 1 / 1000
"""The part of the device's memory that one probe's tensors may take."""
_MOST_FLOP = {"cpu": 2e8, "cuda": 1e12}
_LARGER_PART = 1 / 16
"""The part of these limits that the larger size may take."""
_GROUPS_PART = 1 / 20
"""The part of the device's memory that all kept groups of probes may take."""
_FIRST = 2


@dataclass(frozen=True)
class Probe:
    """One problem in one layout; ``problem`` has that layout's traits."""

    problem: Problem
    layout: Layout
    arguments: Arguments
    values: tuple[Any, ...]
    pristine: tuple[Any, ...]
    bounds: tuple[Bounds, ...]
    outputs: tuple[Surrounded, ...]
    """The outputs that candidates write to, one after another."""

    @cached_property
    def nbytes(self) -> int:
        """Bytes held by tensors, bounds and outputs."""
        tensors = tensors_in((*self.values, *self.pristine))
        held: tuple[torch.Tensor | Bounds | Surrounded, ...] = (*tensors, *self.bounds, *self.outputs)
        return sum(each.nbytes for each in held)

    def __str__(self) -> str:
        return str(self.problem) if self.layout == "contiguous" else f"{self.problem} with {self.layout} inputs"


def probe_problems(op: Op, problem: Problem, device: Device) -> tuple[Problem, ...]:
    """Small problems with the static dimensions of ``problem`` and odd sizes; never ``problem`` itself."""
    found = [_resized(op, problem, size) for size in _SIZES]
    larger = (_resized(op, problem, size) for size in _LARGER_SIZES)
    found.append(next((each for each in larger if each and _is_small(op, each, device, _LARGER_PART)), None))
    other = [each for each in found if each is not None and each != problem]
    small = [each for each in other if _is_small(op, each, device)]
    return tuple(dict.fromkeys(small or other[:1]))


class Probes:
    """Checks candidates on the probes of their problem, each candidate once for all problems that share them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._groups: dict[str, tuple[Probe, ...]] = {}
        self._passed: set[tuple[str, str, int]] = set()
        """Group, candidate, and which of the group's probes."""
        self._tried: set[tuple[str, str, frozenset[str]]] = set()
        """Group, candidate, and with which variants."""
        self._checked: collections.Counter[tuple[str, str]] = collections.Counter()

    def come_first(self, plan: Plan) -> bool:
        """Whether the candidate is checked before it is timed: it is one of the first two of its implementation.

        The first show faults of the kernel. Of later candidates only the fast ones are checked, after timing.
        """
        return self._checked[_group(plan.op, plan.problem), plan.candidate.implementation.name] < _FIRST

    def check(self, plan: Plan, artifacts: Mapping[str, Artifact]) -> None:
        """Run the plan's candidate on the probes of its problem; raises WrongError.

        A probe is left out where the candidate says that it does not support it, and where its variants are not among
        ``artifacts`` (by key): nothing is compiled here.
        """
        group = _group(plan.op, plan.problem)
        tried = group, plan.candidate.key, frozenset(artifacts)
        if tried in self._tried:
            return
        checks, ran = Checks(), list[tuple[str, str, int]]()
        try:
            for place, probe in enumerate(self._of(group, plan)):
                passed = group, plan.candidate.key, place
                if passed not in self._passed and self._run(plan, probe, artifacts, checks):
                    ran.append(passed)
            checks.settle()
        except Exception:
            # the candidate may have written to the probes' inputs
            self._groups.pop(group, None)
            raise
        finally:
            self._checked[group, plan.candidate.implementation.name] += bool(ran)
        self._passed.update(ran)
        self._tried.add(tried)

    def forget(self) -> None:
        """Free the probes' tensors."""
        self._groups.clear()

    def _of(self, group: str, plan: Plan) -> tuple[Probe, ...]:
        if group not in self._groups:
            made = tuple(_probes(plan.op, plan.problem, self._device))
            self._make_room(_GROUPS_PART * self._device.memory_bytes - _nbytes(made))
            self._groups[group] = made
        return self._groups[group]

    def _make_room(self, most: float) -> None:
        """Drop the largest groups until ``most`` bytes are left; each group is asked for again equally soon."""
        held = {group: _nbytes(probes) for group, probes in self._groups.items()}
        while held and sum(held.values()) > most:
            largest = max(held, key=lambda group: held[group])
            del held[largest], self._groups[largest]

    def _run(self, plan: Plan, probe: Probe, artifacts: Mapping[str, Artifact], checks: Checks) -> bool:
        """Enqueue one probe and its checks, or leave it out; returns whether it ran."""
        try:
            wanted = variants_at(plan.op, plan.candidate, probe.problem, probe.arguments, self._device)
            if wanted is None or any(variant.key not in artifacts for variant in wanted):
                return False
            there = build(plan.op, plan.candidate, probe.problem, probe.arguments, self._device, artifacts)
        except RegistryError:
            # dispatch goes on with the next candidate when a plan cannot be built
            return False
        try:
            _check(there, probe, checks)
        except RegistryError:
            return False
        except WrongError as fault:
            raise WrongError(fault.status, _told(probe, fault.message)) from None
        except Exception as fault:
            raised = f"it raises {type(fault).__name__}: {fault}; what it cannot run, unsupported() has to say"
            raise WrongError("error", _told(probe, raised)) from fault
        return True


def _nbytes(probes: Sequence[Probe]) -> int:
    return sum(probe.nbytes for probe in probes)


def _group(op: Op, problem: Problem) -> str:
    static = {name: value for name, value in problem.dims.items() if name not in op.dynamic}
    # a tuned problem is no probe of itself: if it is a probe of other problems, its group is its own
    own = {name: value for name, value in problem.dims.items() if name in op.dynamic}
    is_probe = own in [_sizes(list(own), size) for size in (*_SIZES, *_LARGER_SIZES) if own]
    return canonical_json({"op": op.name, "static": static, "own": own if is_probe else {}})


def _sizes(names: Sequence[str], size: int) -> dict[str, int]:
    """Sizes of the dynamic dimensions where the last is ``size``."""
    others = {name: 1 if size == 1 else _OTHER_SIZES[place % 3] for place, name in enumerate(names)}
    return {**others, names[-1]: size}


def _resized(op: Op, problem: Problem, size: int) -> Problem | None:
    names = [name for name in problem.dims if name in op.dynamic]
    if not names:
        return None
    try:
        return op.problem_of({**problem.dims, **_sizes(names, size)})
    except Exception:  # an op's check may raise anything for a problem that it does not have
        return None


def _is_small(op: Op, problem: Problem, device: Device, part: float = 1.0) -> bool:
    floor, kind = op.floor(problem), "cuda" if device.type == "cuda" else "cpu"
    most = min(_MOST_BYTES[kind], _MEMORY_PART * device.memory_bytes)
    return floor.bytes <= part * most and floor.flop <= part * _MOST_FLOP[kind]


def _planned(problems: Sequence[Problem]) -> Iterator[tuple[Problem, Layout]]:
    for problem in problems:
        yield problem, "contiguous"
    for layout in LAYOUTS[1:] if problems else ():
        # the first that is larger than one element a dimension: one element is contiguous in any layout
        yield problems[min(1, len(problems) - 1)], layout


def _probes(op: Op, problem: Problem, device: Device) -> Iterator[Probe]:
    for each, layout in _planned(probe_problems(op, problem, device)):
        yield from _laid_out(op, each, device, layout)


def _laid_out(op: Op, problem: Problem, device: Device, layout: Layout) -> Iterator[Probe]:
    """The probe of a problem in a layout; none where the op has no such problem or layout."""
    generator = torch.Generator(device=device.torch).manual_seed(len(layout))
    try:
        drawn = op.draw(problem, op.kinds[0], generator)
        values = with_tensors(drawn, lambda tensor: laid_out(tensor, layout))
        arguments = op.arguments(values)
        posed = op.pose(arguments, problem)
        reference = reference64(op, values)
        bounds = bounds_of(op, posed, values, reference, own_error(op, posed, values, reference))
    except Exception:  # an op may raise anything for arguments that it does not take
        return
    if posed == problem and not is_contiguous_by_another_name(layout, arguments.tensors.values()):
        outputs = (surrounded(spec) for spec in op.output_specs(arguments, device.torch).values())
        yield Probe(posed, layout, arguments, values, clone(values), bounds, tuple(outputs))


def _check(plan: Plan, probe: Probe, checks: Checks) -> None:
    if not plan.op.parsed.mutates:
        for output in probe.outputs:
            output.poison()
        _check_on(plan, probe, probe.outputs, (), checks)
        return
    # an op that mutates is given copies with poisoned memory beside them, to find reads and writes beyond the end
    for nan_beside in (False, True):
        outputs = tuple(surrounded(spec) for spec in plan.signature.outputs.values())
        _check_on(plan, probe, outputs, _copies(probe, nan_beside), checks)


def _check_on(
    plan: Plan, probe: Probe, outputs: tuple[Surrounded, ...], copies: Sequence[Surrounded], checks: Checks
) -> None:
    """One run into poisoned outputs, on the probe's arguments, or on a copy of each of its tensors."""
    op, functional = plan.op, plan.candidate.implementation.returns_outputs
    into = () if functional else outputs
    scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
    poison(scratch)
    given = tuple(each.tensor for each in into)
    copy = iter(copies)
    values = with_tensors(probe.values, lambda _: next(copy).tensor) if copies else probe.values
    returned = plan.run(given, plan.prepared.extend(values), scratch)
    found = as_tuple(returned) if functional else given
    if faults := output_faults(found, plan.signature.outputs, values):
        raise WrongError("wrong_result", "; ".join(faults))
    results = op.results(found, values)
    flags = [bounds.holding(result) for bounds, result in zip(probe.bounds, results, strict=True)]
    checks.add(flags, "wrong_result", lambda: _why(op, probe, results))
    for name, tensors in (("outputs", into), ("arguments", copies)):
        beside = _told(probe, f"it writes outside its {name}")
        checks.add([each.untouched() for each in tensors], "wrong_result", beside)
    check_unchanged(op, values, probe.pristine, checks)


def _copies(probe: Probe, nan_beside: bool) -> list[Surrounded]:
    """A copy of each tensor among the probe's arguments, in poisoned surroundings."""
    return [laid_out_within(tensor, probe.layout, nan_beside=nan_beside) for tensor in tensors_in(probe.pristine)]


def _why(op: Op, probe: Probe, results: tuple[torch.Tensor, ...]) -> str:
    reference = reference64(op, probe.pristine)
    error = own_error(op, probe.problem, probe.pristine, reference)
    fault = compare(op, probe.problem, results, reference, error, probe.pristine).message
    return _told(probe, fault) if fault else ""


def _told(probe: Probe, fault: str) -> str:
    return f"right here, but not for {probe}, where dispatch may run it: {fault}"

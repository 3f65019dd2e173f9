"""Problems, layouts and sizes that a candidate is probed on, with their inputs and bounds."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch

from ...arguments.schema import tensors_in, with_tensors
from ...contract import Op
from ...correctness.bounds import Bounds, bounds_of
from ...correctness.expanded import EXPANDED, expanded_inputs, is_any_expanded, loose_bounds, reference_of_expanded
from ...correctness.grad_modes import OTHER_MODES, GradMode
from ...correctness.numerics import own_error, reference64
from ...correctness.other_forms import AS_GIVEN, other_forms
from ...correctness.other_numbers import renumbered, telling_kinds, zeroed
from ...correctness.other_sizes import OtherSize, ProblemLimits, other_sizes
from ...correctness.other_views import layouts_of_views, other_views
from ...correctness.poisoned_layouts import (
    PoisonedLayout,
    Surrounded,
    adds_nothing,
    all_laid_out,
    layouts_on,
    surrounded,
)
from ...device import Device
from ...faults.device_faults import out_of_memory
from ...implementation import Tensors
from ...problem import Arguments, Problem, canonical_json

_SIZES = (1, 37)
"""Sizes of a probe's last dynamic dimension: one, and a prime, which is no multiple of any block."""
_LARGER_SIZES = (4099, 1031, 257)
"""A third size: the largest of these primes that costs little, longer than a block."""
_DIVISIBLE = 36
"""The size of the last dynamic dimension where rows are split into two dimensions."""
_OTHER_SIZES = (3, 5, 2)
"""Sizes of the dynamic dimensions before the last."""
_SECRET_UP_TO = 4
"""Times the size that is tuned: the largest secret one."""
_LIMITS = ProblemLimits({"cpu": 4 << 20, "cuda": 64 << 20}, 1 / 1000, {"cpu": 2e8, "cuda": 1e12})
_LARGER_PART = 1 / 16
"""The part of the limits above that the larger size may take."""

OTHER_NUMBERS = "renumbered"
"""The name of inputs with other attributes than the op's kinds have."""
_SEEDS = 2**62
_Renumbered = TypeVar("_Renumbered")
_CallsOf = Callable[[Op, Problem, tuple[Any, ...]], Iterator[tuple[str, tuple[Any, ...]]]]
"""Other calls of a problem, with their names, from the values of one."""

_CLOSELY_PART = {"cpu": 1 / 2, "cuda": 1 / 8}
"""The part of what a problem of another size may take that one may take which is probed closely: a dozen times."""


@dataclass(frozen=True)
class Probe:
    """One problem in one layout; ``problem`` has that layout's traits.

    ``home``: the probe that a plan is bound for and run on before it meets this one; None for the tuned problem itself.
    ``beside``: other inputs of the problem, for a second thread. ``is_own``: it has the size that is tuned.
    """

    problem: Problem
    layout: PoisonedLayout
    arguments: Arguments
    values: tuple[Any, ...]
    pristine: tuple[Any, ...]
    bounds: tuple[Bounds, ...]
    outputs: tuple[Surrounded, ...]
    """The outputs that candidates write to, one after another."""
    home: Probe | None = None
    beside: Probe | None = None
    is_own: bool = False
    kind: str = ""
    """The kind of inputs, "" for the op's first."""
    mode: GradMode = "grad"
    """torch's mode in which the candidate runs."""

    @property
    def held(self) -> Iterator[torch.Tensor | Bounds | Surrounded]:
        """Everything of a probe that takes memory, of which probes share some: tensors, bounds, surrounded outputs."""
        yield from tensors_in((*self.values, *self.pristine))
        yield from self.bounds
        yield from self.outputs
        for other in (self.home, self.beside):
            if other is not None:
                yield from other.held

    @property
    def which(self) -> str:
        """The layout and the kind of the inputs; "" for row-major ones of the op's first kind."""
        return " ".join(filter(None, ("" if self.layout == "contiguous" else self.layout, self.kind)))

    @property
    def is_usual(self) -> bool:
        """True for row-major inputs of the problem that is tuned, in the usual mode."""
        return self.is_own and self.layout == "contiguous" and self.mode == "grad"

    def __str__(self) -> str:
        shown = f"{self.problem} with {self.which} inputs" if self.which else str(self.problem)
        return shown if self.mode == "grad" else f"{shown} in {self.mode}"


def probe_problems(op: Op, problem: Problem, device: Device) -> tuple[Problem, ...]:
    """Small problems with the static dimensions of ``problem`` and odd sizes; never ``problem`` itself."""
    found = [_resized(op, problem, size) for size in _SIZES]
    larger = (_resized(op, problem, size) for size in _LARGER_SIZES)
    found.append(next((each for each in larger if each and _LIMITS.hold(op, each, device, _LARGER_PART)), None))
    other = [each for each in found if each is not None and each != problem]
    small = [each for each in other if _LIMITS.hold(op, each, device)]
    return tuple(dict.fromkeys(small or other[:1]))


def group_of(op: Op, problem: Problem) -> str:
    """The key of all problems that share the probes of ``small_probes``."""
    static = {name: value for name, value in problem.dims.items() if name not in op.dynamic}
    # a tuned problem is no probe of itself: if it is a probe of other problems, its group is its own
    own = {name: value for name, value in problem.dims.items() if name in op.dynamic}
    is_probe = own in [_sizes(list(own), size) for size in (*_SIZES, _DIVISIBLE, *_LARGER_SIZES) if own]
    return canonical_json({"op": op.name, "static": static, "own": own if is_probe else {}})


def group_of_other_sizes(op: Op, problem: Problem, device: Device) -> str:
    """The name of all problems that share the probes of ``probes_of_other_sizes``: large ones with one small home."""
    sizes = [*other_sizes(op, problem, device), *_met_closely(op, problem, device)]
    pairs = [(dict(each.home.dims), dict(each.problem.dims)) for each in sizes]
    return canonical_json({"op": op.name, "sizes": pairs})


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


def _planned(problems: Sequence[Problem], device: Device) -> Iterator[tuple[Problem, PoisonedLayout]]:
    for problem in problems:
        yield problem, "contiguous"
    for layout in layouts_on(device.type)[1:] if problems else ():
        # the first that is larger than one element a dimension: one element is contiguous in any layout
        yield problems[min(1, len(problems) - 1)], layout


def small_probes(op: Op, problem: Problem, device: Device) -> Iterator[Probe]:
    """Probes of small problems, which all problems with these static dimensions share."""
    problems, drawn = probe_problems(op, problem, device), _Drawn(op, device)
    for each, layout in _planned(problems, device):
        for probe in drawn.laid_out(each, layout):
            # the largest, where calls of two threads take long enough to meet
            in_pairs = each is problems[-1] and layout == "contiguous"
            yield from (replace(probe, mode=mode) for mode in (OTHER_MODES if in_pairs else ()))
            yield drawn.in_pair(probe) if in_pairs else probe
    for each in problems:
        yield from drawn.of_other_kinds(each)
    for each in problems[min(1, len(problems) - 1) :][:1]:
        yield from drawn.with_other_numbers(each)
    layouts = layouts_of_views(device.type)
    for each in _divisible(op, problem, device) or problems[-1:] if layouts else ():
        yield from drawn.with_other_views(each, layouts)


def _divisible(op: Op, problem: Problem, device: Device) -> tuple[Problem, ...]:
    """The small problem whose rows can be split into two dimensions, if the op has it; never ``problem`` itself."""
    found = _resized(op, problem, _DIVISIBLE)
    return () if found is None or found == problem or not _LIMITS.hold(op, found, device) else (found,)


def probes_of_secret_sizes(op: Op, problem: Problem, device: Device, count: int) -> Iterator[Probe]:
    """Row-major probes whose last dynamic dimension has sizes that nobody can foresee, as far as they are small.

    One is between twice and four times the problem's own, the other ``count - 1`` are of any magnitude up to that.
    """
    names = [name for name in problem.dims if name in op.dynamic]
    if not names:
        return
    most = max(int(problem.dims[names[-1]]), 16) * _SECRET_UP_TO
    drawn = (round(math.exp(secrets.SystemRandom().uniform(0.0, math.log(most)))) for _ in range(count - 1))
    inputs, sizes = _Drawn(op, device), [most // 2 + secrets.randbelow(most // 2), *drawn]
    for each in dict.fromkeys(_resized(op, problem, size) for size in sizes[:count]):
        if each is not None and each != problem and _LIMITS.hold(op, each, device):
            yield from inputs.laid_out(each, "contiguous")


def probes_of_other_sizes(op: Op, problem: Problem, device: Device) -> Iterator[Probe]:
    """Probes of sizes next to the problem's own, see ``other_sizes``.

    Those that do not take much are met closely: with every kind of inputs, and a larger one in every layout, after its
    home in that layout, and by two threads, too.
    """
    closely, drawn = frozenset(_met_closely(op, problem, device)), _Drawn(op, device)

    @cache
    def home_of(problem: Problem, layout: PoisonedLayout) -> Probe | None:
        return next(drawn.laid_out(problem, layout), None)

    for other in dict.fromkeys([*other_sizes(op, problem, device), *_met_closely(op, problem, device)]):
        home = None if other.home == problem else home_of(other.home, "contiguous")
        if home is None and other.home != problem:
            continue
        is_close = other in closely
        for probe in drawn.laid_out(other.problem, "contiguous"):
            yield replace(drawn.in_pair(probe) if is_close and other.is_larger else probe, home=home)
        for layout in layouts_on(device.type)[1:] if is_close and other.is_larger else ():
            for probe in drawn.laid_out(other.problem, layout):
                yield replace(probe, home=home_of(other.home, layout) or home)
        for probe in drawn.of_other_kinds(other.problem) if is_close else ():
            yield replace(probe, home=home)


def _met_closely(op: Op, problem: Problem, device: Device) -> Iterator[OtherSize]:
    return other_sizes(op, problem, device, _CLOSELY_PART["cuda" if device.type == "cuda" else "cpu"])


def cases_with_other_numbers(
    op: Op,
    problem: Problem,
    kinds: Iterable[str],
    drawn: Callable[[str], tuple[Any, ...]],
    case_of: Callable[[tuple[Any, ...], Tensors], _Renumbered],
) -> Iterator[_Renumbered]:
    """Cases of inputs of these kinds, as ``drawn`` gives them, with other numbers, which nobody can foretell.

    ``case_of(values, reference)`` makes a case. There is none where the op makes no sense of the numbers.
    """
    for kind in kinds if op.numbers else ():
        try:
            values = drawn(kind)
            found = renumbered(op, problem, values, secrets.randbelow(_SEEDS))
            if found is None:
                continue
            case = case_of(*found)
        except Exception as fault:  # an author's inputs may raise anything, and so may an op for such numbers
            if out_of_memory(fault):
                raise
            continue
        yield case


@dataclass(frozen=True)
class _Case:
    """Inputs of a problem, row-major, with the bounds of right results."""

    values: tuple[Any, ...]
    bounds: tuple[Bounds, ...]


class _Drawn:
    """Probes of an op, whose inputs are drawn, and whose float64 reference is computed, once for all layouts.

    Expanded inputs repeat some of their elements: each layout that expands them has a reference of its own.
    """

    def __init__(self, op: Op, device: Device) -> None:
        self._op = op
        self._device = device
        self._cases: dict[tuple[Problem, str, bool, str], _Case | None] = {}

    def laid_out(
        self, problem: Problem, layout: PoisonedLayout, kind: str = "", *, again: bool = False
    ) -> Iterator[Probe]:
        """The probe of a problem in a layout, none where the op has no such problem or layout.

        ``kind``: of the inputs, the op's first if not given. ``again``: with inputs of another draw.
        """
        expansion = layout if layout in EXPANDED else ""
        case = self._case(problem, kind or self._op.kinds[0], again, expansion)
        if case is not None:
            yield from self._of_case(case, problem, layout, kind)

    def with_other_numbers(self, problem: Problem) -> Iterator[Probe]:
        """Row-major probes of a problem with other numbers than its kinds of inputs have, see ``Op.numbers``."""
        op, drawn, made = self._op, partial(self._values, problem), partial(self._case_of, problem)
        for case in cases_with_other_numbers(op, problem, op.kinds, drawn, made):
            yield from self._of_case(case, problem, "contiguous", OTHER_NUMBERS)

    def with_other_views(self, problem: Problem, layouts: Sequence[PoisonedLayout]) -> Iterator[Probe]:
        """Probes of calls with tensors of other ranks, another reduced dimension, in other forms or with a number 0."""
        op = self._op
        yield from self._otherwise(other_views, problem, op.kinds[0], layouts)
        yield from self._otherwise(other_forms, problem, op.kinds[0], layouts[:1])
        for kind in self._telling(problem):
            yield from self._otherwise(zeroed, problem, kind, layouts[:1])

    def _telling(self, problem: Problem) -> tuple[str, ...]:
        try:
            return telling_kinds(self._op, partial(self._values, problem)) if self._op.numbers else ()
        except Exception as fault:  # as above
            if out_of_memory(fault):
                raise
            return ()

    def _otherwise(
        self, calls_of: _CallsOf, problem: Problem, kind: str, layouts: Sequence[PoisonedLayout]
    ) -> Iterator[Probe]:
        """Probes in these layouts of the calls that are made of inputs of that kind."""
        try:
            calls = list(calls_of(self._op, problem, self._values(problem, kind)))
            cases = [(which, self._case_of(problem, values)) for which, values in calls]
        except Exception as fault:  # as above
            if out_of_memory(fault):
                raise
            return
        for which, case in cases:
            for layout in layouts:
                yield from self._of_case(case, problem, layout, which)

    def _of_case(self, case: _Case, problem: Problem, layout: PoisonedLayout, kind: str) -> Iterator[Probe]:
        op = self._op
        try:
            values = case.values if kind in AS_GIVEN else all_laid_out(case.values, layout)
            pristine = with_tensors(values, torch.clone) if kind in AS_GIVEN else case.values
            arguments = op.arguments(values)
            posed = op.pose(arguments, problem)
            outputs = op.output_specs(arguments, self._device.torch)
        except Exception:  # an op may raise anything for arguments that it does not take
            return
        if posed != problem or adds_nothing(layout, arguments.tensors.values()):
            return
        surroundings = tuple([surrounded(spec) for spec in outputs.values()])
        yield Probe(posed, layout, arguments, values, pristine, case.bounds, surroundings, kind=kind)

    def of_other_kinds(self, problem: Problem) -> Iterator[Probe]:
        """Row-major probes of a problem with each kind of inputs but the op's first."""
        for kind in self._op.kinds[1:]:
            yield from self.laid_out(problem, "contiguous", kind)

    def in_pair(self, probe: Probe) -> Probe:
        """The probe with inputs of another draw beside its own."""
        return replace(probe, beside=next(self.laid_out(probe.problem, probe.layout, again=True), None))

    def _case(self, problem: Problem, kind: str, again: bool, expansion: str) -> _Case | None:
        asked = problem, kind, again, expansion
        if asked not in self._cases:
            try:
                self._cases[asked] = self._draw(*asked)
            except Exception:  # as above
                self._cases[asked] = None
        return self._cases[asked]

    def _draw(self, problem: Problem, kind: str, again: bool, expansion: str) -> _Case | None:
        if expansion:
            return self._expanded(self._case(problem, kind, again, ""), expansion)
        return self._case_of(problem, self._values(problem, kind, again=again))

    def _values(self, problem: Problem, kind: str, *, again: bool = False) -> tuple[Any, ...]:
        generator = torch.Generator(device=self._device.torch).manual_seed(1 + 1_000_003 * again)
        return self._op.draw(problem, kind, generator)

    def _case_of(self, problem: Problem, values: tuple[Any, ...], reference: Tensors | None = None) -> _Case:
        op = self._op
        posed = op.pose(op.arguments(values), problem)
        reference = reference64(op, values) if reference is None else reference
        return _Case(values, bounds_of(op, posed, values, reference, own_error(op, posed, values, reference)))

    def _expanded(self, dense: _Case | None, layout: str) -> _Case | None:
        values = () if dense is None else expanded_inputs(self._op, dense.values, layout)
        reference = reference_of_expanded(self._op, values) if is_any_expanded(values) else None
        return None if dense is None or reference is None else _Case(values, loose_bounds(reference, dense.bounds))

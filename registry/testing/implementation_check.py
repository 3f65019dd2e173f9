"""A check that an implementation is right for each configuration, kind of inputs, layout and size that it supports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from ..contract import Op
from ..correctness.expanded import EXPANDED, reference_of_expanded
from ..correctness.grad_modes import GRAD_MODES, OTHER_MODES, made_in
from ..correctness.other_sizes import OtherSize, false_claim, other_sizes, sizes_apart
from ..correctness.other_views import layouts_of_views
from ..correctness.poisoned_layouts import PoisonedLayout, adds_nothing, layouts_on
from ..device import Device
from ..discovery import answers
from ..dispatch.plans.other_size import at_other_size, bound_by_call
from ..dispatch.plans.plan import Candidate, Plan, build
from ..errors import UnsupportedError
from ..folding import Place
from ..implementation import Implementation
from ..problem import Problem, Value
from ..space import Config
from .given_inputs import GivenInputs
from .other_calls import other_call_faults
from .reports import Notes, Report, guarded, refuse_unlike
from .run_faults import call_faults, changed_faults, concurrent_faults, is_misshapen, repeating_faults, run_faults
from .supported import is_supported

_AT_OTHER_SIZES: tuple[PoisonedLayout, ...] = ("contiguous", "sliced", "transposed", "expanded-dense")
"""Layouts in which another size may get what was bound for the first: with other layouts it is bound anew."""


def check_implementation(
    implementation: Implementation,
    op: Op,
    *,
    problems: Sequence[Problem | Mapping[str, Value]] | None = None,
    device: Device | torch.device | str | None = None,
    configs: Literal["default", "all"] = "default",
) -> Report:
    """Check that an implementation is right; raises CheckError with every fault.

    problems  problems or their dimensions; the op's examples, odd sizes among them, when not given
    device    the best one here that the implementation runs on, when not given
    configs   its default configuration only, or every one of its space

    Each candidate runs on every kind of inputs into poisoned outputs with poisoned surroundings, and again on inputs
    that are not aligned, columns of a wider tensor, not contiguous at all, or only every other tensor, and on a CPU
    expanded: numbers against the float64 reference, dtype, strides, aliasing, writes beside the outputs, arguments and
    scratch, changed inputs, a second and a third run over outputs in which some and all numbers were changed, inputs
    that change in place, other numbers than its kinds of inputs have (``Op.numbers``), torch's modes without gradients,
    on a CPU tensors of more dimensions, a ``dim`` that is not the last, gradients that are needed alone and calls in
    other forms (integers of the other width, mixed dtypes, optional arguments left out, arguments that share memory),
    memory that two calls return, several runs bit by bit unless ``deterministic`` is False, and two threads at once.
    What was bound for the problem is then run, as a call of another size would, at a smaller, a larger and a size that
    is a multiple of 16 where the problem's is none, or none where it is one, along each dynamic dimension; where it is
    twice as large, also columns of a wider tensor, transposed and expanded tensors. An implementation with code of its
    own for untuned sizes, ``bind_untuned``, runs that there. What the implementation says it does not support is
    skipped, with its reasons.
    """
    refuse_unlike("check_implementation", "implementation", implementation, Implementation)
    refuse_unlike("check_implementation", "op", op, Op)
    there = _device(implementation, device)
    notes = Notes(f"{implementation.name} of {op.name} on {there}")
    if implementation.op != op.name:
        notes.failures.append((Place(), f"it implements {implementation.op!r}, not {op.name!r}"))
    layouts = layouts_on(there.type)
    at_other_sizes = [layout for layout in _AT_OTHER_SIZES if layout in layouts]
    for problem in _problems(op, problems):
        for config in _configs(notes, implementation, problem, there, configs):
            candidate = Candidate(implementation, config)
            for layout in layouts:
                _check_layout(notes, op, candidate, problem, there, layout)
            for other in other_sizes(op, problem, there):
                for layout in at_other_sizes if other.is_larger else layouts[:1]:
                    _check_other_size(notes, op, candidate, other, there, layout)
    return notes.report()


def _problems(op: Op, given: Sequence[Problem | Mapping[str, Value]] | None) -> list[Problem]:
    if given is None:
        given = op.examples
    return [each if isinstance(each, Problem) else op.problem_of(each) for each in given]


def _device(implementation: Implementation, device: Device | torch.device | str | None) -> Device:
    if isinstance(device, Device):
        return device
    if device is None:
        usable = "cuda" in implementation.device_types and torch.cuda.is_available()
        device = "cuda" if usable or "cpu" not in implementation.device_types else "cpu"
    return Device.of(device)


def _configs(
    notes: Notes, implementation: Implementation, problem: Problem, device: Device, which: Literal["default", "all"]
) -> Sequence[Config]:
    """The configurations to check; notes why there is none, or what is wrong with the answers of the implementation."""
    question, place = "unsupported", Place(str(problem), str(problem))
    configs: Sequence[Config] = ()
    try:
        if reasons := answers.refusals(implementation, problem, device):
            notes.skipped.append((place, "; ".join(reasons)))
            return ()
        question = "space"
        configs = answers.space_of(implementation, problem, device).configs if which == "all" else ()
        question = "default"
        default = answers.default_config(implementation, problem, device)
    except UnsupportedError as fault:
        unsaid = "" if answers.UNSAID in fault.message else f"; {answers.UNSAID}"
        notes.failures.append((place, f"{fault.message}{unsaid}"))
    except Exception as fault:
        notes.failures.append((place, answers.fault_text(implementation, question, fault)))
    else:
        return configs or (default,)
    return configs


def _check_layout(
    notes: Notes, op: Op, candidate: Candidate, problem: Problem, device: Device, layout: PoisonedLayout
) -> None:
    kinds = op.kinds if layout == "contiguous" else op.kinds[:1]
    values = GivenInputs(op, problem, kinds[0], device, layout).values
    arguments = op.arguments(values)
    if adds_nothing(layout, arguments.tensors.values()) or not _makes_sense(op, values, layout):
        return
    posed = op.pose(arguments, problem)
    place = Place(f"{problem} {layout} {candidate}", str(problem), str(candidate), layout)
    if is_supported(notes, place, candidate, posed, device):
        faults = _layout_faults(notes, op, candidate, posed, device, layout, kinds)
        notes.add(place, guarded(faults, candidate.implementation))


def _makes_sense(op: Op, values: tuple[Any, ...], layout: PoisonedLayout) -> bool:
    """False if the op makes no sense of inputs that the layout expands."""
    return layout not in EXPANDED or reference_of_expanded(op, values) is not None


def _layout_faults(
    notes: Notes, op: Op, candidate: Candidate, problem: Problem, device: Device, layout: PoisonedLayout,
    kinds: tuple[str, ...],
) -> Iterator[str]:  # fmt: skip
    given = GivenInputs(op, problem, kinds[0], device, layout)
    plan = build(op, candidate, problem, op.arguments(given.values), device)
    runs = [(kind, False) for kind in kinds] + [(kind, True) for kind in kinds[:1] if op.parsed.mutates]
    is_wrong = False
    for place, (kind, nan_beside) in enumerate(runs):
        fresh = GivenInputs(op, problem, kind, device, layout, nan_beside=nan_beside)
        for fault in guarded(run_faults(plan, fresh, place), plan.candidate.implementation):
            is_wrong = True
            yield f"{kind} inputs: {fault}"
    if is_misshapen(plan, given):  # the run faults tell it
        return
    if layout == "contiguous" and op.numbers:
        yield from _number_faults(notes, op, candidate, problem, device)
    # of who is wrong already they would tell the same once more
    if layout == "contiguous" and (viewed := layouts_of_views(device.type)) and not is_wrong:
        yield from other_call_faults(notes, op, candidate, problem, device, viewed)
    yield from repeating_faults(plan, given)
    if layout == "contiguous" and not is_wrong:
        yield from _mode_faults(plan, op, problem, device)
    if layout == "contiguous":
        yield from changed_faults(plan, GivenInputs(op, problem, kinds[0], device, layout))
        yield from concurrent_faults(plan, device)


def _mode_faults(plan: Plan, op: Op, problem: Problem, device: Device) -> Iterator[str]:
    """Faults of a call while torch records no gradients."""
    for mode in OTHER_MODES:
        fresh = GivenInputs(op, problem, op.kinds[0], device, "contiguous")
        fresh.values = fresh.values if op.parsed.mutates else made_in(mode, op, fresh.values)
        with GRAD_MODES[mode]():
            faults = list(guarded(run_faults(plan, fresh, 0), plan.candidate.implementation))
        yield from (f"in {mode}: {fault}" for fault in faults)


def _number_faults(notes: Notes, op: Op, candidate: Candidate, problem: Problem, device: Device) -> Iterator[str]:
    """Faults of the plan that a call with other numbers gets after one with those of the first kind.

    Numbers that the implementation refuses are noted as skipped.
    """
    usual = GivenInputs(op, problem, op.kinds[0], device, "contiguous")
    home = bound_by_call(op, candidate, problem, op.arguments(usual.values), device)
    for kind in op.kinds:
        fresh = GivenInputs(op, problem, kind, device, "contiguous", numbers=True)
        arguments = op.arguments(fresh.values)
        posed = op.pose(arguments, problem)
        place = Place(f"{problem} {kind} inputs with other numbers {candidate}", str(problem), str(candidate))
        if not is_supported(notes, place, candidate, posed, device):
            continue
        plan = at_other_size(home, posed, arguments, device) or build(op, candidate, posed, arguments, device)
        for fault in guarded(run_faults(plan, fresh, 0), candidate.implementation):
            yield f"{kind} inputs with other numbers: {fault}"


def _check_other_size(
    notes: Notes, op: Op, candidate: Candidate, other: OtherSize, device: Device, layout: PoisonedLayout
) -> None:
    size, _ = sizes_apart(other.home, other.problem)
    pair = [GivenInputs(op, each, op.kinds[0], device, layout) for each in (other.home, other.problem)]
    arguments = [op.arguments(each.values) for each in pair]
    if adds_nothing(layout, arguments[1].tensors.values()):
        return
    if not all(_makes_sense(op, each.values, layout) for each in pair):
        return
    home, problem = (op.pose(each, like) for each, like in zip(arguments, (other.home, other.problem), strict=True))
    which = "" if layout == "contiguous" else f" {layout}"
    place = Place(f"{problem}{which} after {size} {candidate}", str(problem), str(candidate), layout)
    if all(is_supported(notes, place, candidate, each, device) for each in (home, problem)):
        faults = _faults_of_other_size(op, candidate, OtherSize(home, problem), device, layout)
        notes.add(place, guarded(faults, candidate.implementation))


def _faults_of_other_size(
    op: Op, candidate: Candidate, other: OtherSize, device: Device, layout: PoisonedLayout
) -> Iterator[str]:
    """Faults of the plan that a call of ``other.problem`` gets after a call of ``other.home``."""
    which = "" if layout == "contiguous" else layout

    def inputs(problem: Problem) -> GivenInputs:
        return GivenInputs(op, problem, op.kinds[0], device, layout)

    author = candidate.implementation

    def faults(plan: Plan) -> list[str]:
        return list(guarded(run_faults(plan, inputs(other.problem), 0), author)) or list(
            guarded(call_faults(plan, inputs(other.problem)), author)
        )

    home = bound_by_call(op, candidate, other.home, op.arguments(inputs(other.home).values), device)
    arguments = op.arguments(inputs(other.problem).values)
    problem = op.pose(arguments, other.problem)
    yield from guarded(run_faults(home, inputs(other.home), 0), author)
    there = at_other_size(home, problem, arguments, device)
    # where a call of an untuned size runs other code than a tuned one, that is the code of another size
    found = faults(there or build(op, candidate, problem, arguments, device, untuned=True))
    if (
        found
        and there is not None
        and there.run is home.run
        and not faults(build(op, candidate, problem, arguments, device))
    ):
        yield false_claim(candidate.implementation.name, other.home, other.problem, which, found[0])
    else:
        yield from found

"""What the author of an op or an implementation checks it with. Both functions return a Report or raise CheckError.

from registry.testing import check_implementation

def test_row_softmax() -> None:
    check_implementation(RowSoftmax(), SOFTMAX)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from .arguments.schema import Parameter, tensors_in, with_tensors
from .contract import Op, as_tuple
from .correctness import numerics
from .correctness.bits import disturb, same_bits
from .correctness.output_faults import output_faults, overlap
from .correctness.poisoned_layouts import (
    LAYOUTS,
    Layout,
    Surrounded,
    is_contiguous_by_another_name,
    laid_out_within,
    surrounded,
)
from .correctness.tolerance_check import blind_spots
from .device import Device
from .discovery import answers
from .dispatch.plans.plan import Candidate, Plan, build
from .errors import CheckError, RegistryError, UnsupportedError, folded
from .implementation import Implementation, Tensors
from .problem import Problem, TensorSpec, Value
from .space import Config

SEED = 1234


@dataclass(frozen=True)
class Report:
    """The result of a check: a line for each subject that was checked, and for each reason to skip and each failure.

    A reason or failure that several subjects share is one line with their count, ``(x 12)``.
    """

    subject: str
    checked: tuple[str, ...]
    skipped: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __str__(self) -> str:
        lines = [
            f"{self.subject}: {len(self.checked)} checked, {len(self.skipped)} skipped, {len(self.failures)} failed"
        ]
        lines += [f"  failed: {line}" for line in self.failures]
        lines += [f"  skipped: {line}" for line in self.skipped]
        return "\n".join(lines)


@dataclass
class _Notes:
    """A report in the making."""

    subject: str
    checked: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, subject: str, faults: Iterable[str]) -> None:
        """Note that ``subject`` was checked and has these faults."""
        self.checked.append(subject)
        self.failures += [(subject, fault) for fault in faults]

    def report(self) -> Report:
        """The report; raises CheckError when something failed, or when there was nothing to check."""
        if not self.checked:
            self.failures.append(("", "nothing was checked"))
        failures, skipped = folded(self.failures, _layout_in), folded(self.skipped, _layout_in)
        report = Report(self.subject, tuple(self.checked), tuple(skipped), tuple(failures))
        if not report.ok:
            raise CheckError(str(report))
        return report


def check_op(op: Op, *, problems: Sequence[Problem | Mapping[str, Value]] | None = None) -> Report:
    """Check that a contract agrees with itself, on the CPU; raises CheckError with every fault.

    On ``problems`` (the op's examples when not given) and every kind of inputs: the inputs fit the schema, pose the
    problem again and are reproducible; the fake tells the reference's shapes, dtypes and strides; the reference leaves
    its arguments alone and is accepted by its own tolerance; the floor is positive. On its examples taken together the
    tolerance refuses what nobody computed: zeros, one number everywhere, the output of a previous call.
    """
    notes = _Notes(f"op {op.name}")
    checked = _named(op, problems)
    for problem in checked:
        notes.add(str(problem), _guarded(_op_faults(op, problem)))
    notes.failures += [("", spot) for spot in blind_spots(op, _named(op, None) or checked)]
    return notes.report()


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
    that are not aligned, columns of a wider tensor, and not contiguous at all: numbers against the float64 reference,
    dtype, strides, aliasing, writes beside the outputs and arguments, changed inputs, a second run over outputs in
    which some numbers were changed, memory that two calls return, and several runs bit by bit unless ``deterministic``
    is False. What the implementation says it does not support is skipped, with its reasons.
    """
    there = _device(implementation, device)
    notes = _Notes(f"{implementation.name} of {op.name} on {there}")
    if implementation.op != op.name:
        notes.failures.append(("", f"it implements {implementation.op!r}, not {op.name!r}"))
    for problem in _problems(op, problems):
        for config in _configs(notes, implementation, problem, there, configs):
            candidate = Candidate(implementation, config)
            for layout in LAYOUTS:
                _check_layout(notes, op, candidate, problem, there, layout)
    return notes.report()


def _layout_in(subject: str) -> str:
    """The layout that a subject names: a fault of one layout only is told apart."""
    return next((layout for layout in LAYOUTS if f" {layout} " in subject), "")


def _problems(op: Op, given: Sequence[Problem | Mapping[str, Value]] | None) -> list[Problem]:
    if given is None:
        given = op.examples
    return [each if isinstance(each, Problem) else op.problem_of(each) for each in given]


def _named(op: Op, given: Sequence[Problem | Mapping[str, Value]] | None) -> list[Problem]:
    """Problems of dimensions alone: whether inputs pose them again is for ``check_op`` to tell."""
    given = op.examples if given is None else given
    return [each if isinstance(each, Problem) else op.named(each) for each in given]


def _device(implementation: Implementation, device: Device | torch.device | str | None) -> Device:
    if isinstance(device, Device):
        return device
    if device is None:
        usable = "cuda" in implementation.device_types and torch.cuda.is_available()
        device = "cuda" if usable or "cpu" not in implementation.device_types else "cpu"
    return Device.of(device)


def _configs(
    notes: _Notes, implementation: Implementation, problem: Problem, device: Device, which: Literal["default", "all"]
) -> Sequence[Config]:
    """The configurations to check; notes why there is none, or what is wrong with the answers of the implementation."""
    question: str = "unsupported"
    configs: Sequence[Config] = ()
    try:
        if reasons := answers.refusals(implementation, problem, device):
            notes.skipped.append((str(problem), "; ".join(reasons)))
            return ()
        question = "space"
        configs = implementation.space(problem, device).configs if which == "all" else ()
        question = "default"
        default = answers.default_config(implementation, problem, device)
    except UnsupportedError as fault:
        notes.failures.append((str(problem), f"{fault.message}; unsupported() should have given a reason"))
    except Exception as fault:
        notes.failures.append((str(problem), answers.fault_text(implementation, question, fault)))
    else:
        return configs or (default,)
    return configs


def _guarded(faults: Iterator[str]) -> Iterator[str]:
    """Faults, and whatever the checked code raises as one more: it is somebody else's code that is under test."""
    try:
        yield from faults
    except RegistryError as fault:
        yield f"{fault.message}{fault.hint and f' ({fault.hint})'}"
    except Exception as fault:
        yield f"raised {type(fault).__name__}: {str(fault).strip() or 'no message'}"


# --- implementations ---


def _check_layout(
    notes: _Notes, op: Op, candidate: Candidate, problem: Problem, device: Device, layout: Layout
) -> None:
    kinds = op.kinds if layout == "contiguous" else op.kinds[:1]
    arguments = op.arguments(_Given(op, problem, kinds[0], device, layout).values)
    if is_contiguous_by_another_name(layout, arguments.tensors.values()):
        return
    posed = op.pose(arguments, problem)
    subject = f"{problem} {layout} {candidate}"
    try:
        reasons = answers.refusals(candidate.implementation, posed, device)
    except Exception as fault:
        notes.failures.append((subject, answers.fault_text(candidate.implementation, "unsupported", fault)))
        return
    if reasons:
        notes.skipped.append((subject, "; ".join(reasons)))
        return
    notes.add(subject, _guarded(_candidate_faults(op, candidate, posed, device, layout, kinds)))


class _Given:
    """Inputs of a kind, always the same ones, laid out so in poisoned surroundings."""

    def __init__(
        self, op: Op, problem: Problem, kind: str, device: Device, layout: Layout, *, nan_beside: bool = False
    ) -> None:
        generator = torch.Generator(device.torch).manual_seed(SEED)
        drawn = op.draw(problem, kind, generator)
        self._tensors: list[tuple[Parameter, Surrounded, torch.Tensor]] = []
        self.values = tuple(
            with_tensors((value,), partial(self._lay_out, parameter, layout, nan_beside))[0]
            for parameter, value in zip(op.parsed.parameters, drawn, strict=True)
        )

    def _lay_out(self, parameter: Parameter, layout: Layout, nan_beside: bool, tensor: torch.Tensor) -> torch.Tensor:
        # who reads what is beside an input is to find NaN there; what is mutated may also be changed beside
        found = laid_out_within(tensor, layout, nan_beside=nan_beside or not parameter.mutated)
        self._tensors.append((parameter, found, tensor))
        return found.tensor

    def restore(self) -> None:
        """Give each mutated tensor its first contents again, at the same address."""
        for parameter, found, drawn in self._tensors:
            if parameter.mutated:
                found.tensor.copy_(drawn)

    def faults(self) -> Iterator[str]:
        """Every change of an input, and every write outside an argument."""
        for parameter, found, drawn in self._tensors:
            if not parameter.mutated and not same_bits(found.tensor, drawn):
                yield f"it changes its input {parameter.name}"
            if not bool(found.untouched()):
                yield f"it writes outside its argument {parameter.name}"


def _candidate_faults(
    op: Op, candidate: Candidate, problem: Problem, device: Device, layout: Layout, kinds: tuple[str, ...]
) -> Iterator[str]:
    given = _Given(op, problem, kinds[0], device, layout)
    plan = build(op, candidate, problem, op.arguments(given.values), device)
    runs = [(kind, False) for kind in kinds] + [(kind, True) for kind in kinds[:1] if op.parsed.mutates]
    for place, (kind, nan_beside) in enumerate(runs):
        fresh = _Given(op, problem, kind, device, layout, nan_beside=nan_beside)
        for fault in _guarded(_run_faults(plan, fresh, place)):
            yield f"{kind} inputs: {fault}"
    yield from _repeating_faults(plan, given)


def _run_faults(plan: Plan, given: _Given, start: int) -> Iterator[str]:
    """One run into poisoned outputs, and one over what that left: everything that can be wrong with them."""
    op, values = plan.op, given.values
    before = with_tensors(values, torch.clone) if op.parsed.mutates else values
    reference = numerics.reference64(op, values)
    own = numerics.own_error(op, plan.problem, values, reference)
    into = [surrounded(spec) for spec in plan.signature.outputs.values()]
    outputs = plan.into(_outputs(plan, into), values)
    if faults := output_faults(outputs, plan.signature.outputs, values):
        yield from faults
        return
    if not all(bool(each.untouched()) for each in into):
        yield "it writes outside its outputs"
    yield from given.faults()
    found = numerics.compare(op, plan.problem, op.results(outputs, values), reference, own, before)
    if not found.ok:
        yield found.message
        return
    if plan.candidate.implementation.returns_outputs:
        return
    if _leaves_alone(plan, given, outputs, start):
        yield "it leaves its output alone when called again on the same input"
        return
    found = numerics.compare(op, plan.problem, op.results(outputs, values), reference, own, before)
    if not found.ok:
        yield f"called again on the same input: {found.message}"


def _leaves_alone(plan: Plan, given: _Given, outputs: Tensors, start: int) -> bool:
    """Run again over outputs some of whose numbers are others: whether any output still holds those."""
    given.restore()
    # what has holes, or several elements at one address, is written in another way
    dense = [output for output in outputs if output.numel() and output.is_contiguous()]
    for output in dense:
        disturb(output.view(-1), start)
    others = [output.clone() for output in dense]
    plan.into(outputs, given.values)
    return any(same_bits(output, other) for output, other in zip(dense, others, strict=True))


def _repeating_faults(plan: Plan, given: _Given) -> Iterator[str]:
    """Several calls with the same arguments, at the same addresses."""
    op, values = plan.op, given.values
    first = as_tuple(plan(*values))
    results = tuple(result.clone() for result in op.results(first, values))
    for _ in range(2):
        given.restore()
        again = as_tuple(plan(*values))
        if any(overlap(one, other) for one in first for other in again):
            yield "two calls return the same memory: the second overwrites the first's result"
            return
        if plan.candidate.implementation.deterministic and not _all_same(results, op.results(again, values)):
            yield "two runs on the same inputs differ; say deterministic = False if that is meant"
            return


def _outputs(plan: Plan, given: list[Surrounded]) -> Tensors:
    return () if plan.candidate.implementation.returns_outputs else tuple(each.tensor for each in given)


def _all_same(one: Tensors, other: Tensors) -> bool:
    return all(same_bits(left, right) for left, right in zip(one, other, strict=True))


# --- ops ---


def _op_faults(op: Op, problem: Problem) -> Iterator[str]:
    floor = op.floor(problem)
    if floor.bytes <= 0 or floor.flop < 0:
        yield f"its floor is {floor}: bytes must be positive, flop not negative"
    for kind in op.kinds:
        values = _inputs(op, problem, kind)
        again = _inputs(op, problem, kind)
        if not all(same_bits(one, two) for one, two in zip(_tensors(values), _tensors(again), strict=True)):
            yield f"{kind} inputs: two generators with one seed make different inputs"
        posed = op.pose(op.arguments(values), problem)
        if posed != problem:
            yield f"{kind} inputs: they pose {posed}"
            continue
        yield from (f"{kind} inputs: {fault}" for fault in _reference_faults(op, problem, values))


def _reference_faults(op: Op, problem: Problem, values: tuple[Any, ...]) -> list[str]:
    reference = numerics.reference64(op, values)
    own = numerics.own_error(op, problem, values, reference)
    before = with_tensors(values, torch.clone)
    outputs = as_tuple(op.reference(*values))
    faults = output_faults(outputs, _specs(op, values), () if op.parsed.mutates else values)
    if not op.parsed.mutates and not _all_same(tuple(_tensors(values)), tuple(_tensors(before))):
        faults.append("the reference changes an argument that the schema does not mark as mutated")
    if faults:
        return [f"reference against fake: {fault}" for fault in faults]
    found = numerics.compare(op, problem, op.results(outputs, values), reference, own, before)
    return [] if found.ok else [f"its own reference is refused: {found.message}"]


def _specs(op: Op, values: tuple[Any, ...]) -> dict[str, TensorSpec]:
    return op.output_specs(op.arguments(values), torch.device("cpu"))


def _inputs(op: Op, problem: Problem, kind: str) -> tuple[Any, ...]:
    return op.draw(problem, kind, torch.Generator().manual_seed(SEED))


def _tensors(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return tensors_in(values)

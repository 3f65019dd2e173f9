"""A check that the parts of an op's contract agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..arguments.schema import tensors_in, with_tensors
from ..author_code import at, where_raised
from ..contract import Floor, Op, as_tuple, checked_range
from ..correctness import numerics
from ..correctness.bits import all_same
from ..correctness.output_faults import output_faults, spec_faults
from ..correctness.poisoned_layouts import PoisonedLayout, adds_nothing
from ..correctness.reference_width import narrow_faults
from ..correctness.tolerance_check import blind_spots
from ..device import Device
from ..discovery.backward_check import check_declaration
from ..dispatch.torch_side.reference_gradient import reference_gradient
from ..errors import InvalidArgumentError, InvalidDefinitionError, RegistryError
from ..faults.device_faults import out_of_memory
from ..folding import Place
from ..problem import Problem, Value
from .given_inputs import SEED, GivenInputs
from .reports import Notes, Report, guarded, refuse_unlike
from .shape_faults import shape_faults

_CPU = Device.of("cpu")
_LAYOUTS: tuple[PoisonedLayout, ...] = ("sliced", "transposed", "strided", "expanded-dense", "scalar-dense")
"""Layouts of inputs in which the outputs' strides may follow theirs."""


def check_op(op: Op, *, problems: Sequence[Problem | Mapping[str, Value]] | None = None) -> Report:
    """Check, on the CPU, that the parts of an op's contract agree; raises CheckError with every fault.

    On ``problems`` (the op's examples when not given) and every kind of inputs: the inputs fit the schema, pose the
    problem again, are reproducible, and have the same dtypes and absent arguments in every kind; the fake has the
    reference's shapes, dtypes and strides, also for inputs that are not row-major; the reference computes in float64
    where its arguments are, does not change them, and is accepted by its own tolerance; the floor is positive; both
    ends of a range along which winners transfer are problems of the op, with that range. The tensors that its backward
    names are there, and a reference that is to be inlined reads no data. Over all its examples the tolerance must
    refuse results that were not computed: zeros, one number everywhere, the output of a previous call. The report warns
    of tensors too short for the others which the reference refuses and ``problem`` does not.
    """
    refuse_unlike("check_op", "op", op, Op)
    notes = Notes(f"op {op.name}")
    notes.failures += [(Place(), fault) for fault in _backward_faults(op)]
    checked = list(_examples(op, notes)) if problems is None else _named(op, problems)
    scales = (each.scale for each in (op.tolerance, *op.tolerances.values()))
    authors = (op.reference, op.fake, op.inputs, op.problem, op.floor, *scales, *op.compare.values())
    for problem in checked:
        place = Place(str(problem), str(problem))
        notes.add(place, guarded(_op_faults(op, problem), *authors))
        notes.warned += [(place, told) for told in _warnings(op, problem)]
    examples = checked if problems is None else list(_examples(op, Notes("")))
    notes.failures += [(Place(), spot) for spot in blind_spots(op, examples or checked)]
    return notes.report()


def _backward_faults(op: Op) -> list[str]:
    try:
        check_declaration(op)
    except InvalidDefinitionError as fault:
        return [f"{fault.message.removeprefix(f'op {op.name!r}: ')}{fault.hint and f': {fault.hint}'}"]
    return []


def _named(op: Op, given: Sequence[Problem | Mapping[str, Value]]) -> list[Problem]:
    """The problems by dimensions alone, without their inputs: ``check_op`` checks that inputs pose them."""
    return [each if isinstance(each, Problem) else op.named(each) for each in given]


def _examples(op: Op, notes: Notes) -> Iterator[Problem]:
    """The problems of the op's examples; ``notes`` gets the fault of each that is none."""
    for place, dims in enumerate(op.examples):
        try:
            yield op.named(dims)
        except Exception as fault:
            told = _told(fault) if isinstance(fault, RegistryError) else f"{type(fault).__name__}: {fault}"
            notes.failures.append((Place(), f"examples[{place}], {dict(dims)}: {told}{where_raised(fault, op.check)}"))


def _told(fault: RegistryError) -> str:
    return f"{fault.message}{fault.hint and f' ({fault.hint})'}"


def _op_faults(op: Op, problem: Problem) -> Iterator[str]:
    floor = op.floor(problem)
    if not isinstance(floor, Floor):
        yield f"its floor is {floor!r:.80}, expected registry.Floor(bytes=..., flop=...)"
    elif floor.bytes <= 0 or floor.flop < 0:
        yield f"its floor is {floor}: bytes must be positive, flop not negative"
    for name in op.transfers:
        yield from _range_faults(op, problem, name)
    first: dict[str, Any] = {}
    for kind in op.kinds:
        values, again = (op.draw(problem, kind, torch.Generator().manual_seed(SEED)) for _ in range(2))
        if not all_same(tensors_in(values), tensors_in(again)):
            yield (
                f"{kind} inputs: two generators with one seed make different inputs{at(op.inputs)}: draw by the"
                " generator that inputs() is given, torch.randn(..., generator=generator)"
            )
        forms = dict(zip(op.parsed.names, map(_form, values), strict=True))
        first = first or forms
        for name in (name for name, form in forms.items() if form != first[name]):
            yield (
                f"{kind} inputs: {name} is {forms[name]}, that of {op.kinds[0]} inputs {first[name]}: one plan answers"
                " both, and is bound for one of them; let the kinds differ in numbers alone"
            )
        posed = op.pose(op.arguments(values), problem)
        for name in (name for name in sorted(op.dynamic) if type(posed.dims[name]) is not int):
            yield f"problem() gives {name} as {posed.dims[name]!r:.80}, expected an int, as of every dynamic dimension"
        if posed != problem:
            apart = [f"{name} {posed.dims[name]!r}" for name in problem.dims if posed.dims[name] != problem.dims[name]]
            yield f"{kind} inputs: they pose {posed}, that is {', '.join(apart)}{at(op.inputs)}"
            continue
        if op.view is not None:
            posed.traits.contiguous(op.parsed.names[0])  # raises where view() fails
        yield from (f"{kind} inputs: {fault}" for fault in _reference_faults(op, problem, values))
        if kind == op.kinds[0]:
            yield from narrow_faults(op, values)
            for layout in _LAYOUTS:
                yield from (f"{layout} inputs: {fault}" for fault in _strided_faults(op, problem, layout))
        yield from (f"{kind} inputs: {fault}" for fault in _inline_faults(op, values))


def _warnings(op: Op, problem: Problem) -> list[str]:
    """The sizes that ``problem`` should refuse; none where a function of the op raises, which is a fault by itself."""
    try:
        values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(SEED))
        return list(shape_faults(op, problem, values))
    except Exception as fault:
        if out_of_memory(fault):
            raise
        return []


def _form(value: Any) -> str:
    """What a plan is bound for besides sizes and layouts: the dtypes of tensors, and the type of any other value."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_form, value))}]"
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__


def _range_faults(op: Op, problem: Problem, name: str) -> Iterator[str]:
    size = problem.dims[name]
    if type(size) is not int:
        yield f"transfers: {name} is {size!r:.80}, expected an int"
        return
    try:
        for end in checked_range(name, op.transfers[name], size):
            op.problem_of({**problem.dims, name: end})
    except InvalidDefinitionError as fault:
        yield f"{fault.message}: {fault.hint}"
    except InvalidArgumentError as fault:
        yield f"transfers: {name}={end}, an end of the range of {size}, is no problem of the op: {fault.message}"


def _reference_faults(op: Op, problem: Problem, values: tuple[Any, ...]) -> list[str]:
    reference = numerics.reference64(op, values)
    own = numerics.own_error(op, problem, values, reference)
    before = with_tensors(values, torch.clone)
    outputs = as_tuple(op.reference(*values))
    specs = op.output_specs(op.arguments(values), torch.device("cpu"))
    faults = output_faults(outputs, specs, () if op.parsed.mutates else values)
    if not op.parsed.mutates and not all_same(tensors_in(values), tensors_in(before)):
        faults.append("the reference changes an argument that the schema does not mark as mutated")
    if faults:
        return [f"reference against fake: {fault}" for fault in faults]
    found = numerics.compare(op, problem, op.results(outputs, values), reference, own, before)
    return [] if found.ok else [f"its own reference is refused: {found.message}"]


def _strided_faults(op: Op, problem: Problem, layout: PoisonedLayout) -> Iterator[str]:
    """Outputs of the reference that are not those of the fake where inputs lie otherwise: a compiled call fails then.

    Layouts that the op refuses, or that no tensor of this problem can have, are left out.
    """
    values = GivenInputs(op, problem, op.kinds[0], _CPU, layout).values
    arguments = op.arguments(values)
    if adds_nothing(layout, arguments.tensors.values()):
        return
    try:
        op.pose(arguments, problem)
    except InvalidArgumentError:
        return
    outputs = as_tuple(op.reference(*values))
    specs = op.output_specs(arguments, _CPU.torch)
    for (name, spec), output in zip(specs.items(), outputs, strict=True):
        for fault in spec_faults(name, output, spec):
            strided = fault.startswith(f"{name} has strides")
            remedy = ": where the fake says row-major, end the reference with .contiguous()" if strided else ""
            yield f"reference against fake: {fault}{at(op.reference)}{remedy}"


def _inline_faults(op: Op, values: tuple[Any, ...]) -> list[str]:
    """Why the gradient of a reference that is to be inlined cannot be traced: computing it needs data."""
    if op.backward is None or not op.backward.inline:
        return []
    given = with_tensors(values, lambda tensor: tensor.to("meta"))
    needed = [_needs(value) for value in given]
    try:
        grads = [torch.empty_like(output) for output in as_tuple(op.reference(*given))]
        reference_gradient(op, given, grads, needed)
    except Exception as fault:
        return [f"its reference cannot be inlined: without data it raises {type(fault).__name__}: {fault!s:.200}"]
    return []


def _needs(value: Any) -> bool | tuple[bool, ...]:
    """True for a tensor that can have a gradient; for a list a bool per item."""
    if isinstance(value, list | tuple):
        return tuple([bool(_needs(one)) for one in value])
    return isinstance(value, torch.Tensor) and value.is_floating_point()

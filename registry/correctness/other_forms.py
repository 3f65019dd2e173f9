"""Calls of one problem in forms that an op's inputs do not have: other dtypes, arguments left out, shared memory.

A problem does not say of which width indices are, whether an optional argument is given that no dimension tells of, or
where tensors lie. An implementation that knows only the inputs' form is wrong for others that callers may give.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..arguments.schema import Parameter, tensors_in, with_tensors
from ..contract import Op
from ..problem import Problem
from .magnitudes import is_float8
from .other_views import is_same, viewed
from .taken import is_posed, reference_if_taken

_WIDTHS: Mapping[torch.dtype, torch.dtype] = {torch.int64: torch.int32, torch.int32: torch.int64}
_HALVES = (torch.float16, torch.bfloat16)
_MORE_ROWS = 2

_Values = tuple[Any, ...]
_Results = tuple[torch.Tensor, ...]

OWN_STORAGE = "plain transposed"
SPLIT_STORAGE = "plain split transposed"
ONE_TENSOR = "repeated"
ONE_ADDRESS = "overlapping"
AS_GIVEN = frozenset({OWN_STORAGE, SPLIT_STORAGE, ONE_TENSOR, ONE_ADDRESS})
"""Forms whose tensors must stay where they are, without poison around them.

plain transposed: each begins where its memory does, and fills it, but is not row-major. plain split transposed: the
same, of vectors as matrices. repeated: one tensor for two arguments. overlapping: two tensors begin at one address, and
have different strides.
"""


def other_forms(op: Op, problem: Problem, values: _Values) -> Iterator[tuple[str, _Values]]:
    """Names and values of calls of the same problem in other forms, as far as the op has such calls.

    integers of the other width, all or each alone; floating tensors of another dtype than those that they are alike in
    the inputs; each optional argument left out; each tensor of one element without dimensions; more rows than the
    problem has, which are not read; and those of ``AS_GIVEN``.
    """
    usual = reference_if_taken(op, values)
    found = itertools.chain(
        _of_other_width(op, problem, values),
        _of_other_dtypes(op, problem, values),
        _left_out(op, values, usual),
        _without_dimensions(op, values),
        _padded(op, values, usual),
        _in_memory(op, values),
    )
    posed = ((which, call) for which, call in found if is_posed(op, problem, call))
    return ((which, call) for which, call in posed if reference_if_taken(op, call) is not None)


def _replaced(values: _Values, place: int, value: Any) -> _Values:
    return (*values[:place], value, *values[place + 1 :])


def _each_tensor(op: Op, values: _Values) -> Iterator[tuple[int, Parameter, torch.Tensor]]:
    """Place, parameter and value of each argument that is one tensor, and that the op does not mutate."""
    for place, (parameter, value) in enumerate(zip(op.parsed.parameters, values, strict=True)):
        if isinstance(value, torch.Tensor) and not parameter.mutated:
            yield place, parameter, value


def _of_other_width(op: Op, problem: Problem, values: _Values) -> Iterator[tuple[str, _Values]]:
    integers = [(place, parameter, one) for place, parameter, one in _each_tensor(op, values) if one.dtype in _WIDTHS]
    every = values
    for place, _, one in integers:
        every = _replaced(every, place, one.to(_WIDTHS[one.dtype]))
    if integers and is_posed(op, problem, every):
        yield "integers of the other width", every
        return
    for place, parameter, one in integers:
        other = _WIDTHS[one.dtype]
        yield f"{str(other).removeprefix('torch.')} {parameter.name}", _replaced(values, place, one.to(other))


def _of_other_dtypes(op: Op, problem: Problem, values: _Values) -> Iterator[tuple[str, _Values]]:
    """Calls with first the one and then the other of two tensors that are alike in another dtype."""
    for name in dict.fromkeys(itertools.chain.from_iterable(op.alike.items())):
        place = op.parsed.names.index(name)
        one = values[place]
        if not isinstance(one, torch.Tensor) or op.parsed.parameters[place].mutated:
            continue
        dtypes = (torch.float32,) if one.dtype in _HALVES else _HALVES
        calls = ((dtype, _replaced(values, place, one.to(dtype))) for dtype in dtypes)
        posed = ((dtype, call) for dtype, call in calls if is_posed(op, problem, call))
        yield from ((f"{str(dtype).removeprefix('torch.')} {name}", call) for dtype, call in itertools.islice(posed, 1))


def _left_out(op: Op, values: _Values, usual: _Results | None) -> Iterator[tuple[str, _Values]]:
    """Tensors, numbers that may be others, and what makes no difference: other tensors may depend on the rest."""
    for place, (parameter, value) in enumerate(zip(op.parsed.parameters, values, strict=True)):
        if not parameter.optional or value is None:
            continue
        call = _replaced(values, place, None)
        is_other = parameter.holds_tensors or parameter.name in op.numbers
        if is_other or is_same(op, usual, call):
            yield f"absent {parameter.name}", call


def _without_dimensions(op: Op, values: _Values) -> Iterator[tuple[str, _Values]]:
    for place, parameter, one in _each_tensor(op, values):
        if one.dim() and one.numel() == 1:
            yield f"scalar {parameter.name}", _replaced(values, place, one.reshape(()))


def _padded(op: Op, values: _Values, usual: _Results | None) -> Iterator[tuple[str, _Values]]:
    """More rows of NaN after those of the tensors of the highest rank, where they change nothing."""
    moving = [(place, one) for place, parameter, one in _each_tensor(op, values) if parameter.name not in op.weights]
    moving = [(place, one) for place, one in moving if one.is_floating_point() and not is_float8(one.dtype)]
    rank = max((one.dim() for _, one in moving), default=0)
    call = values
    for place, one in moving:
        if one.dim() == rank > 0:
            more = torch.full_like(one[:1], torch.nan).expand(_MORE_ROWS, *one.shape[1:])
            call = _replaced(call, place, torch.cat([one, more]))
    if call is not values and is_same(op, usual, call):
        yield "padded", call


# --- where tensors lie ---


def _in_memory(op: Op, values: _Values) -> Iterator[tuple[str, _Values]]:
    """The calls of ``AS_GIVEN``; none of ops that mutate, whose arguments share no memory."""
    if op.parsed.mutates:
        return
    yield OWN_STORAGE, with_tensors(values, _transposed)
    if all(one.dim() < 2 for one in tensors_in(values)) and (matrices := viewed(op, values, "split")) is not None:
        yield SPLIT_STORAGE, with_tensors(matrices, _transposed)
    pair = _interchangeable(op, values)
    if pair is None:
        return
    first, second = pair
    yield ONE_TENSOR, _replaced(values, second, values[first])
    one, other = _overlapping(values[first], values[second])
    yield ONE_ADDRESS, _replaced(_replaced(values, first, one), second, other)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that has the last two dimensions exchanged in memory; of one dimension with a gap after each element."""
    if tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    return tensor.new_empty(2 * tensor.numel())[::2].view(tensor.shape).copy_(tensor)


def _interchangeable(op: Op, values: _Values) -> tuple[int, int] | None:
    """The last two floating tensors of one shape and dtype, which are no weights; None where there are none.

    None of an op without a gradient, as gradients are: their tensors may have been made from each other.
    """
    kinds: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for place, parameter, one in _each_tensor(op, values) if op.backward is not None else ():
        if one.is_floating_point() and one.numel() and parameter.name not in op.weights:
            kinds.setdefault((one.shape, one.dtype), []).append(place)
    pairs = [places for places in kinds.values() if len(places) > 1]
    return (pairs[-1][-2], pairs[-1][-1]) if pairs else None


def _overlapping(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors at one address, of the numbers of both: a row-major one, and every other element from the first."""
    both = torch.cat([one.reshape(-1), other.reshape(-1)])
    return both[: one.numel()].view(one.shape), both[::2].as_strided(one.shape, _doubled(one))


def _doubled(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(2 * stride for stride in torch.empty(tensor.shape, device="meta").stride())

"""Calls with other numbers: attributes of which the inputs of every kind have the same few values.

An implementation that has these few in its code would be right for them alone. Only what the op names in ``numbers`` is
changed, since another number may contradict tensors that were made with it. Another integer is one of those that the
integer tensors hold: of classes or rows, those that occur.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..arguments.schema import tensors_in
from ..contract import Op
from ..faults.device_faults import out_of_memory
from ..problem import Problem
from .numerics import compare, full_precision, own_error, reference64, results_of
from .taken import is_posed

_RATIOS = (1.15, 1.4)
"""Another number is so many times a given one, or its inverse: near, so that results have similar magnitudes."""
_OF_NONE = (0.05, 0.1)
"""Values of an attribute that is None: a scale of logits, of heads with 100 to 400 elements."""
_OF_ZERO = (0.1, 0.4)
"""Values of an attribute that is 0: a share, such as that of smoothed labels."""


def telling_kinds(op: Op, drawn: Callable[[str], tuple[Any, ...]]) -> tuple[str, ...]:
    """Two kinds of inputs, where not all can be tried: the first, and the first that has other numbers, if any has.

    A kind with a number of its own has inputs on which it tells, such as rows so small that an epsilon decides.
    ``drawn``: inputs of a kind.
    """
    first, *others = op.kinds if op.numbers else op.kinds[:1]
    usual = _numbers(op, drawn(first))
    return first, *itertools.islice((kind for kind in others if _numbers(op, drawn(kind)) != usual), 1)


def renumbered(
    op: Op, problem: Problem, values: tuple[Any, ...], seed: int
) -> tuple[tuple[Any, ...], tuple[torch.Tensor, ...]] | None:
    """(the values with other numbers, their float64 reference); None where the op makes no sense of others.

    Floats alone are others where it makes none of other integers: a target that is not ignored may not be one.
    """
    for integers in (True, False) if any(_is_integer(op, place) for place in _places(op)) else (False,):
        changed = other_numbers(op, problem, values, seed, integers=integers)
        reference = None if changed is None else reference_of_changed(op, values, changed)
        if changed is not None and reference is not None:
            return changed, reference
    return None


def zeroed(op: Op, problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Names and values of calls with 0 for one of ``Op.numbers``, as far as the op makes sense of it.

    Who writes ``scale or default`` takes it for none. A call that the reference itself gets wrong in the dtype of its
    arguments, as a gradient that cancels to nothing without an epsilon, tells nothing of an implementation.
    """
    for place in _places(op):
        zero = 0 if _is_integer(op, place) else 0.0
        call = (*values[:place], zero, *values[place + 1 :])
        if values[place] == zero or not is_posed(op, problem, call):
            continue
        reference = reference_of_changed(op, values, call)
        if reference is not None and _is_right_in_its_dtype(op, problem, call, reference):
            yield f"zero {op.parsed.names[place]}", call


def other_numbers(
    op: Op, problem: Problem, values: tuple[Any, ...], seed: int, *, integers: bool = True
) -> tuple[Any, ...] | None:
    """The values with another number near each of ``Op.numbers``; None where none may be another.

    A number of which the problem's dimensions tell, such as that there is no softcap, stays, and so does an integer
    that the integer tensors hold already; all integers without ``integers``.
    """
    drawn, changed = random.Random(seed), list(values)
    for place in _places(op):
        if not _is_integer(op, place):
            number: float | None = _near(values[place], drawn)
        elif integers:
            number = _held(values, values[place], drawn)
        else:
            continue
        tried = [*changed[:place], number, *changed[place + 1 :]]
        if is_posed(op, problem, tuple(tried)):
            changed = tried
    return None if _numbers(op, tuple(changed)) == _numbers(op, values) else tuple(changed)


def reference_of_changed(op: Op, values: tuple[Any, ...], changed: tuple[Any, ...]) -> tuple[torch.Tensor, ...] | None:
    """The float64 reference of values with other numbers; None if the op makes no sense of these.

    It makes none where its reference fails, and where results are finite in other places than those of the values: with
    a logit of minus infinity, smoothed labels give an infinite loss, and implementations may differ.
    """
    try:
        # the first reference is dropped before there is a second
        finite = [one.isfinite() for one in reference64(op, values)]
        reference = reference64(op, changed)
        pairs = zip(finite, reference, strict=True)
        return reference if all(bool((one == other.isfinite()).all()) for one, other in pairs) else None
    except Exception as fault:  # an op may raise anything for numbers that it does not take
        if out_of_memory(fault):
            raise
        return None


def _is_right_in_its_dtype(
    op: Op, problem: Problem, values: tuple[Any, ...], reference: tuple[torch.Tensor, ...]
) -> bool:
    """Whether the op's own reference, run in the dtypes of the values, is as near to the float64 one as is allowed."""
    with full_precision():
        results = results_of(op, values)
    return compare(op, problem, results, reference, own_error(op, problem, values, reference), values).ok


def _near(number: float | None, drawn: random.Random) -> float:
    if not number:
        return drawn.uniform(*(_OF_NONE if number is None else _OF_ZERO))
    ratio = drawn.uniform(*_RATIOS)
    return number * ratio if drawn.random() < 1 / 2 else number / ratio


def _is_integer(op: Op, place: int) -> bool:
    return op.parsed.parameters[place].kind == "int"


def _held(values: tuple[Any, ...], number: int | None, drawn: random.Random) -> int | None:
    """An integer that the integer tensors hold; ``number`` where they hold it, or one alone, which all would name."""
    tensors = [one.unique() for one in tensors_in(values) if one.dtype in {torch.int32, torch.int64}]
    held = sorted({*itertools.chain.from_iterable(one.tolist() for one in tensors)})
    return drawn.choice(held) if len(held) > 1 and number not in held else number


def _numbers(op: Op, values: tuple[Any, ...]) -> Mapping[int, Any]:
    return {place: values[place] for place in _places(op)}


def _places(op: Op) -> Iterator[int]:
    return (place for place, name in enumerate(op.parsed.names) if name in op.numbers)

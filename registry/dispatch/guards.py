"""When a call is the same as one that was resolved before: the matcher of one entry of the hot path's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..problem import FULL_ALIGNMENT
from .torch_private import Check, tensor_guard

Condition = Callable[..., bool]
"""A further demand, called with the tensors of the call."""


def matcher(given: Sequence[Any], conditions: Sequence[Condition] = ()) -> Check:
    """``match(*given)``: whether a later call, of as many values, may run what this one runs.

    Tensors must agree in all that ``torch_private.native_guard`` names, other values in type and value: 1, 1.0 and
    True are equal to Python, and 0.0 equals -0.0, but a kernel may have been compiled for one of them.
    """
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    count = len(tensors)
    if all(isinstance(value, torch.Tensor) for value in given[:count]):
        check = _prefix(count, _tensors(tensors), tuple(given[count:]))
    else:
        check = _scattered(given, _tensors(tensors))
    return _with(check, conditions) if conditions else check


def _tensors(tensors: Sequence[torch.Tensor]) -> Check:
    if len({id(tensor) for tensor in tensors}) == len(tensors):
        return tensor_guard(*tensors)
    # torch's guard refuses a tensor that is given twice, so each gets its own
    checks = [tensor_guard(tensor) for tensor in tensors]

    def each(*given: Any) -> bool:
        return all(check(value) for check, value in zip(checks, given, strict=True))

    return each


def _prefix(count: int, check: Check, plain: tuple[Any, ...]) -> Check:
    """Tensors first, then plain values: how nearly every call looks."""
    if not plain:
        return check
    if len(plain) == 1:
        return _one_attribute(check, plain[0])
    same = _same(plain)

    def match(*given: Any) -> bool:
        return check(*given[:count]) and same(given[count:])

    return match


def _one_attribute(check: Check, expected: Any) -> Check:
    same = _same((expected,))

    def match(*given: Any) -> bool:
        value = given[-1]
        # most calls pass the very constant of their source line
        return (value is expected or same((value,))) and check(*given[:-1])

    return match


def _same(expected: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], bool]:
    kinds = [*map(type, expected)]
    if any(isinstance(value, float) and value == 0 for value in expected):
        shown = str(expected)
        return lambda values: [*map(type, values)] == kinds and str(values) == shown
    return lambda values: [*map(type, values)] == kinds and values == expected


def _scattered(given: Sequence[Any], check: Check) -> Check:
    places = [place for place, value in enumerate(given) if isinstance(value, torch.Tensor)]
    others = [place for place in range(len(given)) if place not in places]
    same = _same(tuple(given[place] for place in others))

    def match(*values: Any) -> bool:
        return same(tuple(values[place] for place in others)) and check(*[values[place] for place in places])

    return match


def _with(check: Check, conditions: Sequence[Condition]) -> Check:
    def match(*given: Any) -> bool:
        return check(*given) and all(condition(*given) for condition in conditions)

    return match


def aligned(*given: Any) -> bool:
    """Every tensor starts at a multiple of 16 bytes."""
    return all(value.data_ptr() % FULL_ALIGNMENT == 0 for value in given if isinstance(value, torch.Tensor))


def misaligned(*given: Any) -> bool:
    """Some tensor does not."""
    return not aligned(*given)


def not_capturing(*_given: Any) -> bool:
    """No CUDA graph is being captured from the current stream."""
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def determinism_not_asked(*_given: Any) -> bool:
    """``torch.use_deterministic_algorithms`` is off."""
    return not torch.are_deterministic_algorithms_enabled()


def determinism_asked(*_given: Any) -> bool:
    """It is on."""
    return torch.are_deterministic_algorithms_enabled()

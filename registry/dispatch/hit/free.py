"""Attributes that may differ from call to call of one plan: what stands for them in an entry of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...problem import fits_int32


class Free:
    """Equals every value of one kind. It stands where an entry holds the value of an attribute that nobody looked at.

    Kernels take an int in 32 bits or in 64, and are compiled for one of them; a float and a double are told apart by
    no value.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: type, holds: Callable[[Any], bool]) -> None:
        self._kind = kind
        self._holds = holds

    def __eq__(self, value: object) -> bool:
        return type(value) is self._kind and self._holds(value)


_INT32 = Free(int, fits_int32)
_INT64 = Free(int, lambda value: not fits_int32(value) and -(2**63) <= value < 2**63)
_FLOAT = Free(float, lambda _: True)


def free_like(value: object) -> Free | None:
    """What stands for ``value`` and all others that a kernel takes as it takes that.

    None for what is no int, no float and no tuple of ints.
    """
    return _FLOAT if type(value) is float else free_integer(value)


def free_integer(value: object) -> Free | None:
    """What stands for every int, or every tuple of as many, that a kernel takes as it takes ``value``; else None."""
    if type(value) is tuple:
        each = [free_integer(one) for one in value]
        if value and all(one is _INT32 for one in each):
            return Free(tuple, lambda given: len(given) == len(value) and _all_fit_int32(given))
        return None if None in each else Free(tuple, lambda given: given == tuple(each))
    return next((free for free in (_INT32, _INT64) if free == value), None)


def _all_fit_int32(numbers: tuple[Any, ...]) -> bool:
    # a third of the time that a look at each takes
    return ONLY_INT.issuperset(map(type, numbers)) and fits_int32(min(numbers)) and fits_int32(max(numbers))


ONLY_INT: Final = frozenset({int})


def same(value: Any, expected: Any) -> bool:
    """Equal to a kernel: 1, 1.0 and True are equal to Python, and 0.0 equals -0.0, but one may be compiled in."""
    if value is expected:
        return True
    if isinstance(expected, Free):
        return bool(expected == value)
    if type(value) is tuple and type(expected) is tuple:
        return len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and bool(value == expected) and (value != 0 or str(value) == str(expected))


def same_zero(value: float, expected: Any) -> bool:
    """Whether a zero has the sign that is expected of it, if one is."""
    return isinstance(expected, Free) or str(value) == str(expected)

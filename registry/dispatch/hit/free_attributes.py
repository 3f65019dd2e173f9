"""Placeholders in table entries for attributes that may differ between calls of one plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...problem import fits_int32


class Free:
    """A placeholder that equals every value of one kind, for an attribute that the answer does not depend on.

    Ints of 32 and of 64 bits are two kinds, since a kernel is compiled for one of them; floats are one kind.
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
    """A placeholder that equals ``value`` and all values of its kind, which a kernel takes alike.

    None unless ``value`` is an int, a float or a tuple of ints.
    """
    return _FLOAT if type(value) is float else free_integer(value)


def free_integer(value: object) -> Free | None:
    """A placeholder for ints, or tuples of ints of one length, that a kernel takes like ``value``; None for others."""
    if type(value) is tuple:
        each = [free_integer(one) for one in value]
        if value and all(one is _INT32 for one in each):
            return Free(tuple, lambda given: len(given) == len(value) and _all_fit_int32(given))
        return None if None in each else Free(tuple, lambda given: given == tuple(each))
    return next((free for free in (_INT32, _INT64) if free == value), None)


def _all_fit_int32(numbers: tuple[Any, ...]) -> bool:
    # three times as fast as a loop
    return ONLY_INT.issuperset(map(type, numbers)) and fits_int32(min(numbers)) and fits_int32(max(numbers))


ONLY_INT: Final = frozenset({int})


def same(value: Any, expected: Any) -> bool:
    """True if two values are equal to a kernel; 1, 1.0 and True, or 0.0 and -0.0, are equal only to Python."""
    if value is expected:
        return True
    if isinstance(expected, Free):
        return bool(expected == value)
    if type(value) is tuple and type(expected) is tuple:
        return len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and bool(value == expected) and (value != 0 or str(value) == str(expected))


def same_zero(value: float, expected: Any) -> bool:
    """True if a zero has the sign of ``expected``, or if that is a placeholder."""
    return isinstance(expected, Free) or str(value) == str(expected)

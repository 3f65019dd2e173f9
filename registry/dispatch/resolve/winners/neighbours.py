"""Winners that may answer at the same static dimensions: finds those of exactly some sizes, and their distances.

Static dimensions along which winners transfer count as sizes here, like dynamic ones; see ``Op.transfers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....contract import Op
from ....problem import Value, exact

SizeNumbers = NDArray[np.float64]


class Neighbours:
    """Winners, each known by a place among all winners, and their sizes: ``columns`` are along ``Op.near_along``."""

    def __init__(self, places: Sequence[int], columns: Sequence[SizeNumbers]) -> None:
        self.places = places
        self.columns = columns
        self.sources: frozenset[int] | None = None
        """The numbers of the sources of all winners; None until they are needed."""

    @classmethod
    def sized(cls, op: Op, places: Sequence[int], dims: Sequence[Any], bad: Callable[[int], None]) -> Neighbours:
        """The winners at ``places`` with these dimensions; ``bad(place)`` is called for sizes that are no numbers."""
        columns = _columns(op, dims)
        if columns is None:
            usable = [pair for pair in zip(places, dims, strict=True) if _is_usable(op, *pair, bad)]
            places = [place for place, _ in usable]
            columns = [np.array([_size(each[name]) for _, each in usable], np.float64) for name in op.near_along]
        return cls(places, columns)

    @cached_property
    def at(self) -> NDArray[np.int64]:
        """The places as an array."""
        return np.array(self.places, np.int64)

    def taken(self, index: NDArray[np.int64]) -> Neighbours:
        """The winners with these numbers in the order of ``places``."""
        return Neighbours(self.at[index].tolist(), [column[index] for column in self.columns])

    def with_others(self, others: Neighbours) -> Neighbours:
        """These winners and ``others``, by their places."""
        both = Neighbours(
            [*self.places, *others.places],
            [np.concatenate(pair) for pair in zip(self.columns, others.columns, strict=True)],
        )
        return both.taken(np.argsort(both.at))

    def same(self, sizes: tuple[float, ...]) -> list[int]:
        """The places of winners of these sizes."""
        equal = np.ones(len(self.places), np.bool_)
        for size, column in zip(sizes, self.columns, strict=True):
            equal &= column == size
        return [self.places[index] for index in np.flatnonzero(equal).tolist()]

    def octaves(self, sizes: tuple[float, ...]) -> SizeNumbers:
        """The distance of each winner, except for rounding errors."""
        # by columns, since a reduction over a short axis is slow
        logarithms = [np.log2(size / column) for size, column in zip(sizes, self.columns, strict=True)]
        found: SizeNumbers = (
            np.abs(logarithms[0]) if len(sizes) == 1 else np.sqrt(sum(each * each for each in logarithms))
        )
        return found

    def across(self, sizes: tuple[float, ...], there: tuple[float, ...]) -> SizeNumbers:
        """The distance of each winner on the other side of ``sizes`` than ``there``, infinite for all others.

        On the other side: in each dimension ``sizes`` is between the winner's and ``there``.
        """
        between, elsewhere = np.ones(len(self.places), np.bool_), np.zeros(len(self.places), np.bool_)
        for here, other, column in zip(sizes, there, self.columns, strict=True):
            between &= (column - here) * (here - other) >= 0
            elsewhere |= column != other
        return np.where(between & elsewhere, self.octaves(sizes), np.inf)

    def octaves_of(self, sizes: tuple[float, ...], index: int) -> float:
        """The exact distance of the winner at ``index``."""
        return octaves_between(sizes, [float(column[index]) for column in self.columns])


def octaves_between(one: Sequence[float], other: Sequence[float]) -> float:
    """Euclidean distance of the sizes' base-2 logarithms: 1.0 is a factor of two in one size."""
    # of quotients: half and double have exactly equal distances, unlike with differences of logarithms
    return math.hypot(*[math.log2(size / far) for size, far in zip(one, other, strict=True)])


def sizes_of(op: Op, dims: Mapping[str, Value]) -> tuple[float, ...]:
    """The dimensions of ``Op.near_along`` as numbers of at least 1. Raises ValueError and OverflowError."""
    return tuple([max(float(dims[name]), 1) for name in op.near_along])


def key_of(dims: Mapping[str, Value]) -> frozenset[tuple[str, Hashable]]:
    """A key of dimensions: keys are equal if and only if the canonical JSON is."""
    return frozenset([(name, exact(value)) for name, value in dims.items()])


def may_differ(op: Op) -> frozenset[str]:
    """The dimensions in which a problem may differ from the problem whose winner it takes."""
    return op.dynamic | op.distributions.keys() | op.transfers.keys()


def unlike(op: Op, one: Mapping[str, Value], other: Mapping[str, Value]) -> list[int]:
    """For each distribution 0 if both problems agree, else the place (from 1) of the other's name among its names."""
    return [
        0 if one[name] == other[name] else 1 + (names.index(str(other[name])) if other[name] in names else len(names))
        for name, names in op.distributions.items()
    ]


def key_getter(static: Sequence[str]) -> Callable[[Any], Hashable]:
    """A function that returns the values of the ``static`` dimensions, a key; that of a single dimension as it is.

    Values that are equal in Python but of different types are rare, and distinguished when a winner is decoded.
    """
    return itemgetter(*static) if static else lambda _: ()


def _columns(op: Op, found: Sequence[Any]) -> list[SizeNumbers] | None:
    """The sizes along each of ``Op.near_along``; None if any of the dimensions is missing or no number of at least 1.

    A column at once takes a tenth of the time of its sizes one by one.
    """
    columns: dict[str, SizeNumbers] = {}
    try:
        for name in may_differ(op):
            values = [dims[name] for dims in found]
            if name in op.distributions:
                continue
            kinds = {*map(type, values)}
            columns[name] = column = np.array(values, np.float64)
            if not kinds <= {int, float} or (kinds and min(values) < 1):
                return None
            if float in kinds and not ((column >= 1) & np.isfinite(column)).all():
                return None
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return [columns[name] for name in op.near_along]


def _is_usable(op: Op, place: int, dims: Any, bad: Callable[[int], None]) -> bool:
    """True if the dimensions have sizes that are numbers; ``bad(place)`` is called for sizes that are none."""
    try:
        if not may_differ(op) <= dims.keys():
            return False
        for name in op.near_along:
            _size(dims[name])
    except (TypeError, ValueError, OverflowError, AttributeError):
        bad(place)
        return False
    return True


def _size(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.80} is no size")
    return max(float(value), 1.0)

"""Winners with equal static dimensions: finds those of exactly some sizes, and their distances from sizes.

Static dimensions along which winners transfer count as sizes here, like dynamic ones; see ``Op.transfers``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuning_db import Transfer

from ...contract import Op, checked_range
from ...problem import Value, exact

SizeNumbers = NDArray[np.float64]


class Neighbours:
    """Winners with equal static dimensions, each known by a place, and their sizes along ``Op.near_along``.

    ``places`` are those in ``dims``, the dimensions of all winners; ``bad(place)`` is called for those whose sizes are
    no numbers. ``transfers``: the sizes at which winners were also verified, by place, for those that were at any.
    """

    def __init__(
        self,
        op: Op,
        places: Sequence[int],
        dims: Sequence[Any],
        bad: Callable[[int], None],
        transfers: Mapping[int, Mapping[str, Transfer]],
    ) -> None:
        self.candidates: NDArray[np.int64] | None = None
        """For each winner a number for its candidate, and one for its source; None until they are needed."""
        self.sources: frozenset[Hashable] | None = None
        """The sources of all winners; None until they are needed."""
        columns = _columns(op, [dims[place] for place in places])
        if columns is None:
            places = [place for place in places if _is_usable(op, place, dims[place], bad)]
            columns = [np.array([_size(dims[place][name]) for place in places], np.float64) for name in op.near_along]
        self.places = places
        self._columns: list[SizeNumbers] = columns
        self._array = np.array(columns, dtype=np.float64).reshape(len(op.near_along), -1).T
        self._reach = _reaches(op, places, dims, columns, transfers) if op.transfers else None
        """For each dimension the least and the greatest size at which each winner may answer; None if no limits."""
        self._transferring = [name in op.transfers for name in op.near_along]
        self._bounds = [self._bounds_along(column) for column in range(len(op.near_along))] if op.transfers else []

    def same(self, sizes: tuple[float, ...]) -> list[int]:
        """The places of winners of these sizes."""
        equal = np.ones(len(self.places), np.bool_)
        for size, column in zip(sizes, self._columns, strict=True):
            equal &= column == size
        return [self.places[index] for index in np.flatnonzero(equal).tolist()]

    def octaves(self, sizes: tuple[float, ...]) -> SizeNumbers:
        """The distance of each winner, except for rounding errors; infinite if it does not transfer to these sizes."""
        # by columns, since a reduction over a short axis is slow
        logarithms = [np.log2(size / column) for size, column in zip(sizes, self._columns, strict=True)]
        found: SizeNumbers = (
            np.abs(logarithms[0]) if len(sizes) == 1 else np.sqrt(sum(each * each for each in logarithms))
        )
        return found if self._reach is None else np.where(self.reached(sizes), found, np.inf)

    def reached(self, sizes: tuple[float, ...]) -> NDArray[np.bool_]:
        """A mask of winners that may answer at these sizes: each may differ in one static dimension only."""
        reached, moved = np.ones(len(self.places), np.bool_), np.zeros(len(self.places), np.int8)
        if self._reach is None:
            return reached
        for size, column, (low, high), static in zip(
            sizes, self._columns, self._reach, self._transferring, strict=True
        ):
            own = column == size
            reached &= own | ((low <= size) & (size <= high))
            if static:
                moved += ~own
        return reached & (moved <= 1)

    def _bounds_along(self, column: int) -> SizeNumbers:
        """The sizes, along one dimension, at which the set of winners that transfer changes."""
        assert self._reach is not None
        (low, high), own = self._reach[column], self._columns[column]
        return np.unique(np.concatenate([low, high + 1, own, own + 1]))

    def stretch(self, column: int, size: float) -> float:
        """The greatest size, along one dimension, up to which the set of winners that transfer is that of ``size``."""
        further = self._bounds[column].searchsorted(size, "right")
        return float(self._bounds[column][further]) - 1 if further < len(self._bounds[column]) else math.inf

    def across(self, sizes: tuple[float, ...], there: tuple[float, ...]) -> SizeNumbers:
        """The distance of each winner on the other side of ``sizes`` than ``there``, infinite for all others.

        On the other side: in each dimension ``sizes`` is between the winner's and ``there``.
        """
        here, other = np.asarray(sizes), np.asarray(there)
        between = ((self._array - here) * (here - other) >= 0).all(axis=1) & (self._array != other).any(axis=1)
        return np.where(between, self.octaves(sizes), np.inf)

    def octaves_of(self, sizes: tuple[float, ...], index: int) -> float:
        """The exact distance of the winner at ``index``."""
        return octaves_between(sizes, [float(column[index]) for column in self._columns])


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


def grouped(static: Sequence[str], dims_of_all: Sequence[Any], bad: Callable[[int], None]) -> dict[Hashable, list[int]]:
    """The places in ``dims_of_all`` by the values of the ``static`` dimensions there; see ``values_of``.

    Values that are equal in Python but of different types are rare, and distinguished when a winner is decoded.
    ``bad(place)`` is called for values that are no dimensions.
    """
    # no object for each place: thousands of them make Python's collector walk all objects of the process
    groups: dict[Hashable, list[int]] = {}
    values = itemgetter(*static) if static else lambda _: ()
    for place, dims in enumerate(dims_of_all):
        try:
            groups.setdefault(values(dims), []).append(place)
        except KeyError:  # stored when the op had other dimensions
            continue
        except TypeError:
            bad(place)
    return groups


def values_of(static: Sequence[str], dims: Mapping[str, Value]) -> Hashable:
    """The key of ``grouped`` for the group of a problem's dimensions."""
    key: Hashable = itemgetter(*static)(dims) if static else ()
    return key


def _columns(op: Op, found: Sequence[Any]) -> list[SizeNumbers] | None:
    """The sizes along each of ``Op.near_along``; None if any of the dimensions is missing or no number of at least 1.

    A column at once takes a tenth of the time of its sizes one by one.
    """
    columns = []
    try:
        for name in may_differ(op):
            values = [dims[name] for dims in found]
            if name in op.near_along and not {*map(type, values)} <= {int, float}:
                return None
        for name in op.near_along:
            column = np.array([dims[name] for dims in found], dtype=np.float64)
            if not ((column >= 1) & np.isfinite(column)).all():
                return None
            columns.append(column)
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return columns


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


def _reaches(
    op: Op,
    places: Sequence[int],
    dims: Sequence[Any],
    columns: Sequence[SizeNumbers],
    transfers: Mapping[int, Mapping[str, Transfer]],
) -> list[SizeNumbers]:
    """The least and the greatest size at which each winner may answer, ``[2, winners]`` for each dimension.

    Along a static dimension these are its own, or those at which it was verified, if the op still declares that it
    transfers.
    """
    reaches = [
        np.stack([column, column] if name in op.transfers else [np.zeros_like(column), np.full_like(column, np.inf)])
        for name, column in zip(op.near_along, columns, strict=True)
    ]
    for index, place in enumerate(places) if transfers else ():
        if told := transfers.get(place):
            for name, reach in zip(op.near_along, reaches, strict=True):
                if name in told and (declared := op.transfers.get(name)) is not None:
                    with contextlib.suppress(Exception):  # an author's function may raise anything
                        least, greatest = checked_range(name, declared, dims[place][name])
                        reach[:, index] = max(least, told[name].low), min(greatest, told[name].high)
    return reaches

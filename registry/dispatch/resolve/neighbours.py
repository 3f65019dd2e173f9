"""Winners with equal static dimensions: finds those of exactly some sizes, and their distances from sizes.

Static dimensions along which winners transfer count as sizes here, like dynamic ones; see ``Op.transfers``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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

    ``found`` are places with their dimensions; ``bad(place)`` is called for those whose sizes are no numbers.
    ``transfers(place)`` returns the sizes at which a winner was also verified.
    """

    def __init__(
        self,
        op: Op,
        found: Iterable[tuple[int, Any]],
        bad: Callable[[int], None],
        transfers: Callable[[int], Mapping[str, Transfer]],
    ) -> None:
        self.places: list[int] = []
        self.candidates: NDArray[np.int64] | None = None
        """For each winner a number for its candidate, and one for its source; None until they are needed."""
        self.sources: frozenset[Hashable] | None = None
        """The sources of all winners; None until they are needed."""
        self._sizes: list[tuple[float, ...]] = []
        self._of_sizes: dict[tuple[float, ...], list[int]] = {}
        reach: list[tuple[tuple[float, float], ...]] = []
        loose = may_differ(op)
        for place, dims in found:
            try:
                if loose <= dims.keys():
                    sizes = tuple([_size(dims[name]) for name in op.near_along])
                    reach.append(_reach(op, dims, transfers(place)))
                    self.places.append(place)
                    self._sizes.append(sizes)
                    self._of_sizes.setdefault(sizes, []).append(place)
            except (TypeError, ValueError, OverflowError, AttributeError):
                bad(place)
        shape = len(self.places), len(op.near_along)
        self._array = np.array(self._sizes, dtype=np.float64).reshape(shape)
        self._columns = [np.ascontiguousarray(column) for column in self._array.T]
        self._reach: list[SizeNumbers] | None = None
        """For each dimension the least and the greatest size at which each winner may answer; None if no limits."""
        if op.transfers:
            ends = np.array(reach, dtype=np.float64).reshape(*shape, 2)
            self._reach = [np.ascontiguousarray(ends[:, column].T) for column in range(shape[1])]
        self._transferring = [name in op.transfers for name in op.near_along]
        self._bounds = [self._bounds_along(column) for column in range(len(op.near_along))] if op.transfers else []

    def same(self, sizes: tuple[float, ...]) -> list[int]:
        """The places of winners of these sizes."""
        return self._of_sizes.get(sizes, [])

    def octaves(self, sizes: tuple[float, ...]) -> SizeNumbers:
        """The distance of each winner, except for rounding errors; infinite if it does not transfer to these sizes."""
        # by columns, since a reduction over a short axis is slow
        logarithms = [np.log2(size / column) for size, column in zip(sizes, self._columns, strict=True)]
        found: SizeNumbers = (
            np.abs(logarithms[0]) if len(sizes) == 1 else np.sqrt(sum(each * each for each in logarithms))
        )
        return found if self._reach is None else np.where(self._reached(sizes), found, np.inf)

    def _reached(self, sizes: tuple[float, ...]) -> NDArray[np.bool_]:
        """A mask of winners that may answer at these sizes: each may differ in one static dimension only."""
        assert self._reach is not None
        reached, moved = np.ones(len(self.places), np.bool_), np.zeros(len(self.places), np.int8)
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
        return octaves_between(sizes, self._sizes[index])


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


def grouped(
    static: Sequence[str], found: Iterable[tuple[int, Any]], bad: Callable[[int], None]
) -> dict[Hashable, list[tuple[int, Any]]]:
    """``found``, places with their dimensions, grouped by the values of the ``static`` ones; see ``values_of``.

    Values that are equal in Python but of different types are rare, and distinguished when a winner is decoded.
    ``bad(place)`` is called for values that are no dimensions.
    """
    groups: dict[Hashable, list[tuple[int, Any]]] = {}
    values = itemgetter(*static) if static else lambda _: ()
    for place, dims in found:
        try:
            groups.setdefault(values(dims), []).append((place, dims))
        except KeyError:  # stored when the op had other dimensions
            continue
        except TypeError:
            bad(place)
    return groups


def values_of(static: Sequence[str], dims: Mapping[str, Value]) -> Hashable:
    """The key of ``grouped`` for the group of a problem's dimensions."""
    key: Hashable = itemgetter(*static)(dims) if static else ()
    return key


def _size(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.80} is no size")
    return max(float(value), 1.0)


def _reach(op: Op, dims: Mapping[str, Any], transfers: Mapping[str, Transfer]) -> tuple[tuple[float, float], ...]:
    """The least and the greatest size at which a winner may answer, for each dimension of ``Op.near_along``.

    Along a static dimension these are the sizes at which it was verified, if the op still declares that it transfers.
    """
    found = []
    for name in op.near_along:
        size, declared, told = dims[name], op.transfers.get(name), transfers.get(name)
        low, high = (0.0, math.inf) if declared is None else (size, size)
        if declared is not None and told is not None:
            with contextlib.suppress(Exception):  # an author's function may raise anything
                least, greatest = checked_range(name, declared, size)
                low, high = max(least, told.low), min(greatest, told.high)
        found.append((low, high))
    return tuple(found)

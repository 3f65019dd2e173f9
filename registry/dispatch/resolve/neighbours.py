"""Winners whose static dimensions are equal: which are of exactly some sizes, which are nearest to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract import Op
from ...problem import Value, exact

Numbers = NDArray[np.float64]


class Neighbours:
    """Places of winners with equal static dimensions, and their sizes: their dynamic dimensions, in order of name.

    ``found`` are places with their dimensions; ``bad(place)`` is called for those whose sizes are no numbers.
    """

    def __init__(self, op: Op, found: Iterable[tuple[int, Any]], bad: Callable[[int], None]) -> None:
        self.places: list[int] = []
        self.candidates: NDArray[np.int64] | None = None
        """A number for the candidate of each, and one for its source, once somebody needs them."""
        self._sizes: list[tuple[float, ...]] = []
        self._of_sizes: dict[tuple[float, ...], list[int]] = {}
        dynamic, loose = sorted(op.dynamic), may_differ(op)
        for place, dims in found:
            try:
                if loose <= dims.keys():
                    sizes = tuple([_size(dims[name]) for name in dynamic])
                    self.places.append(place)
                    self._sizes.append(sizes)
                    self._of_sizes.setdefault(sizes, []).append(place)
            except (TypeError, ValueError, OverflowError, AttributeError):
                bad(place)
        self._array = np.array(self._sizes, dtype=np.float64).reshape(len(self.places), len(dynamic))

    def same(self, sizes: tuple[float, ...]) -> list[int]:
        """The places of winners of these sizes."""
        return self._of_sizes.get(sizes, [])

    def octaves(self, sizes: tuple[float, ...]) -> Numbers:
        """The distance of each, right but for the last bits."""
        logarithms = np.log2(np.asarray(sizes) / self._array)
        found: Numbers = np.abs(logarithms[:, 0]) if len(sizes) == 1 else np.sqrt((logarithms * logarithms).sum(axis=1))
        return found

    def across(self, sizes: tuple[float, ...], there: tuple[float, ...]) -> Numbers:
        """The distance of each on the other side of ``sizes`` than ``there``, infinite for all others.

        In each dimension ``sizes`` lies between the two.
        """
        here, other = np.asarray(sizes), np.asarray(there)
        between = ((self._array - here) * (here - other) >= 0).all(axis=1) & (self._array != other).any(axis=1)
        return np.where(between, self.octaves(sizes), np.inf)

    def octaves_of(self, sizes: tuple[float, ...], index: int) -> float:
        """The distance of the one at ``index``, to the last bit."""
        return octaves_between(sizes, self._sizes[index])


def octaves_between(one: Sequence[float], other: Sequence[float]) -> float:
    """Euclidean distance of the sizes' base-2 logarithms: 1.0 is twice or half in one of them."""
    # quotients: halves and doubles are equally far, which differences of logarithms are not to the last bit
    return math.hypot(*[math.log2(size / far) for size, far in zip(one, other, strict=True)])


def sizes_of(op: Op, dims: Mapping[str, Value]) -> tuple[float, ...]:
    """The dynamic dimensions as numbers from 1 on, in order of name. Raises ValueError and OverflowError."""
    return tuple([max(float(dims[name]), 1) for name in sorted(op.dynamic)])


def key_of(dims: Mapping[str, Value]) -> frozenset[tuple[str, Hashable]]:
    """Dimensions as a key, equal where their canonical JSON is."""
    return frozenset([(name, exact(value)) for name, value in dims.items()])


def may_differ(op: Op) -> frozenset[str]:
    """Dimensions that may differ between a problem and one whose winner it takes."""
    return op.dynamic | op.distributions.keys()


def unlike(op: Op, one: Mapping[str, Value], other: Mapping[str, Value]) -> list[int]:
    """By distribution 0 where both have the same one, else the place from 1 on of the other's among those declared."""
    return [
        0 if one[name] == other[name] else 1 + (names.index(str(other[name])) if other[name] in names else len(names))
        for name, names in op.distributions.items()
    ]


def grouped(
    static: Sequence[str], found: Iterable[tuple[int, Any]], bad: Callable[[int], None]
) -> dict[Hashable, list[tuple[int, Any]]]:
    """``found``, places with their dimensions, by the values of the ``static`` ones; see ``values_of``.

    Values that are equal to Python but of different types are told apart when a winner is decoded, not here: that is
    one in thousands. ``bad(place)`` is called for what are no dimensions.
    """
    groups: dict[Hashable, list[tuple[int, Any]]] = {}
    values = itemgetter(*static) if static else lambda _: ()
    for place, dims in found:
        try:
            groups.setdefault(values(dims), []).append((place, dims))
        except KeyError:  # of an op that had other dimensions
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

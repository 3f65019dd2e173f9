"""The valid configurations of a space, held as numbers: a configuration is made when it is asked for.

A constraint is asked once for each combination of the parameters that it reads, not once for each configuration: of a
million configurations of six parameters a constraint on three sees some hundreds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from .arguments.specs import WatchedValues
from .problem import Value, exact

if TYPE_CHECKING:
    from .space import Config, Space

PointNumbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_KEPT = 8
"""The most recent spaces whose numbers stay in memory: a million take 4 MB, and milliseconds to compute again."""


class Points(Sequence["Config"]):
    """The valid configurations of a space, in the order of its domains.

    Each point of the product of the domains has a number, its place in that order; ``numbers`` are the numbers of the
    valid points, ascending, and stay in memory while they are referred to. A row is a place in this sequence.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._domains = space.domains
        self.sizes = tuple(map(len, space.domains.values()))
        self._strides = _strides(self.sizes)
        self._length: int | None = None
        self._numbers: weakref.ref[NDArray[np.integer[Any]]] | None = None

    @property
    def numbers(self) -> NDArray[np.integer[Any]]:
        """The number of each valid configuration. Raises InvalidDefinitionError, as ``Space.violations``."""
        held = None if self._numbers is None else self._numbers()
        if held is None:
            held = _valid_numbers(self._space)
            self._numbers = weakref.ref(held)
        return held

    def __len__(self) -> int:
        if self._length is None:
            self._length = len(self.numbers)
        return self._length

    @overload
    def __getitem__(self, row: SupportsIndex) -> Config: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Config]: ...
    def __getitem__(self, row: SupportsIndex | slice) -> Config | Sequence[Config]:
        if isinstance(row, slice):
            return [self._config(number) for number in self.numbers[row].tolist()]
        return self._config(int(self.numbers[row.__index__()]))

    def __iter__(self) -> Iterator[Config]:
        numbers = self.numbers
        for start in range(0, len(numbers), 1024):
            yield from map(self._config, numbers[start : start + 1024].tolist())

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self.row(config) is not None

    def row(self, config: Config) -> int | None:
        """The row of a configuration; None for one that is not valid. 1, 1.0 and True are distinct."""
        if config.keys() != self._domains.keys():
            return None
        places = [
            {exact(value): place for place, value in enumerate(values)}.get(exact(config[name]))
            for name, values in self._domains.items()
        ]
        known = [place for place in places if place is not None]
        found = self._rows([known]) if len(known) == len(places) else []
        return found[0] if found else None

    def places(self, rows: NDArray[np.integer[Any]] | slice) -> PointNumbers:
        """Array ``[i, p]``: the place of row i's value of parameter p in the domain of p."""
        numbers = self.numbers[rows].astype(np.int64)
        columns = [numbers // stride % size for stride, size in zip(self._strides, self.sizes, strict=True)]
        return np.stack(columns, axis=1) if columns else np.zeros((len(numbers), 0), dtype=np.int64)

    def distances(self, places: Sequence[int] | PointNumbers) -> PointNumbers:
        """The L1 distance of every row from the point with these places."""
        numbers = self.numbers
        total = np.zeros(len(numbers), dtype=np.int64)
        for stride, size, place in zip(self._strides, self.sizes, places, strict=True):
            total += np.abs((numbers // stride % size).astype(np.int64) - int(place))
        return total

    def near(self, places: Sequence[int] | PointNumbers, distance: int) -> list[int]:
        """The rows at exactly this L1 distance from the point with these places, ascending."""
        return sorted(self._rows(_around([int(place) for place in places], self.sizes, distance)))

    def _rows(self, points: Iterable[Sequence[int]]) -> list[int]:
        strides = self._strides
        wanted = [sum(place * stride for place, stride in zip(point, strides, strict=True)) for point in points]
        numbers = self.numbers
        rows = np.searchsorted(numbers, np.array(wanted, dtype=numbers.dtype))
        there = zip(rows.tolist(), wanted, strict=True)
        return [row for row, number in there if row < len(numbers) and numbers[row] == number]

    def _config(self, number: int) -> Config:
        places = (number // stride % size for stride, size in zip(self._strides, self.sizes, strict=True))
        return {name: values[place] for (name, values), place in zip(self._domains.items(), places, strict=True)}


def _strides(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))


def _around(places: Sequence[int], sizes: Sequence[int], distance: int) -> Iterator[tuple[int, ...]]:
    """Every point of the product at exactly this L1 distance from ``places``."""
    if not places:
        yield from [()] * (distance == 0)
        return
    for step in range(-distance, distance + 1):
        if 0 <= places[0] + step < sizes[0]:
            for rest in _around(places[1:], sizes[1:], distance - abs(step)):
                yield (places[0] + step, *rest)


@lru_cache(maxsize=_KEPT)
def _valid_numbers(space: Space) -> NDArray[np.integer[Any]]:
    kind = np.uint32 if space.product < 2**32 else np.int64
    if not space.constraints:
        return np.arange(space.product, dtype=kind)
    holds = np.ones(tuple(map(len, space.domains.values())), dtype=bool)
    for name in space.constraints:
        holds &= _where(space.domains, lambda config, name=name: space.holds(name, config), holds)  # type: ignore[misc]
    return np.flatnonzero(holds).astype(kind)


class _MoreRead(Exception):  # noqa: N818  (no fault: the question is asked again)
    """Raised when a constraint reads a parameter that it has not read before."""


def _where(domains: Mapping[str, Sequence[Value]], holds: Callable[[Config], bool], alive: Mask) -> Mask:
    """A mask, which broadcasts to the shape of ``alive``, of the points at which a constraint holds."""
    read: set[str] = set()
    while True:
        try:
            return _answers(domains, holds, alive, read)
        except _MoreRead:
            continue


def _answers(
    domains: Mapping[str, Sequence[Value]], holds: Callable[[Config], bool], alive: Mask, read: set[str]
) -> Mask:
    """Answers by the parameters in ``read``; adds to ``read`` and raises _MoreRead if the constraint reads more."""
    names, values = list(domains), list(domains.values())
    whole = read.issuperset(names)
    others = tuple(place for place, name in enumerate(names) if name not in read)
    asked = alive.any(axis=others, keepdims=True) if others else alive
    answers = np.zeros(asked.shape, dtype=bool)
    strides = _strides(asked.shape)
    for number in np.flatnonzero(asked).tolist():
        config = {
            name: given[number // stride % size]
            for name, given, stride, size in zip(names, values, strides, asked.shape, strict=True)
        }
        if whole:
            answers.flat[number] = bool(holds(config))
            continue
        watched = WatchedValues(config)
        try:
            answers.flat[number] = bool(holds(watched))
        except Exception:
            # excluded by another constraint, or the constraint needs a dict: it is called again with more parameters
            read.update(names if watched.read <= read else watched.read)
            raise _MoreRead from None
        if not watched.read <= read:
            read |= watched.read
            raise _MoreRead
    return answers

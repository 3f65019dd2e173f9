"""Winners by their static dimensions: a group is decoded when it is asked for, with the winners that transfer to it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tuning_db import Transfer

from ....contract import Op, checked_range
from .neighbours import Neighbours, SizeNumbers, key_getter

_MOST_HELD = 4
"""Groups are forgotten when they hold so many times the number of all winners."""


_Told = tuple[Mapping[str, Any], Mapping[str, Transfer]]


class AllWinners(Protocol):
    """The winners of an op on one hardware, each known by a place."""

    @property
    def count(self) -> int: ...

    def alike(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """Dimensions with all static ones, and the places of the winners that have these; other values if unknown."""

    def dims(self, places: Sequence[int]) -> list[Any]:
        """The dimensions of the winners at ascending ``places``; None for those that cannot be decoded."""

    def transferring(self) -> Collection[int]:
        """The places of winners that were verified at other static sizes, too."""

    def transfers(self, place: int) -> Mapping[str, Transfer]:
        """The other static sizes at which a winner was verified."""

    def bad(self, place: int, why: str) -> None:
        """Called for a winner that is skipped."""


class StaticGroups:
    """Winners by the values of ``static``, all dimensions but the dynamic ones and distributions of data."""

    def __init__(self, op: Op, static: Sequence[str], winners: AllWinners) -> None:
        self._op = op
        self._static = static
        self._values = key_getter(static)
        self._fixed_values = key_getter([name for name in static if name not in op.transfers])
        self._winners = winners
        self.places = self._grouped()
        """The places of winners by the key of their static dimensions, see ``key_getter``."""
        self._found: dict[Hashable, Neighbours] = {}
        self._held = 0
        self._movers: dict[Hashable, _Movers] = {}
        self._bounds: dict[tuple[Hashable, str], SizeNumbers] = {}

    def group(self, dims: Mapping[str, Any]) -> Neighbours | None:
        """The winners that may answer at the static dimensions in ``dims``; None without any."""
        key = self._values(dims)
        found = self._found.get(key)
        if found is None:
            found = self._own(key)
            if self._op.transfers and (movers := self._movers_like(dims)) is not None:
                found = found.with_others(movers.reaching(dims))
            self._keep(key, found)
        return found if found.places else None

    def stretch(self, dims: Mapping[str, Any], name: str) -> float:
        """The greatest size of static dimension ``name`` up to which the winners are those of ``group(dims)``."""
        size, place = float(dims[name]), (self._fixed_values(dims), name)
        if place not in self._bounds:
            self._bounds[place] = self._bounds_along(dims, name)
        bounds = self._bounds[place]
        further = bounds.searchsorted(size, "right")
        return float(bounds[further]) - 1 if further < len(bounds) else math.inf

    def _grouped(self) -> dict[Hashable, list[int]]:
        # no object for each place: thousands of them make Python's collector walk all objects of the process
        groups: dict[Hashable, list[int]] = {}
        unknown: list[int] = []
        for dims, places in self._winners.alike():
            try:
                groups.setdefault(self._values(dims), []).extend(places)
            except (KeyError, TypeError):  # stored when the op had other static dimensions, or damaged
                unknown += places
        unknown.sort()
        for place, dims in zip(unknown, self._winners.dims(unknown), strict=True):
            try:
                groups.setdefault(self._values(dims), []).append(place)
            except KeyError:  # stored when the op had other dimensions
                continue
            except TypeError:
                self._winners.bad(place, "its dimensions are none")
        return groups

    def _own(self, key: Hashable) -> Neighbours:
        """The winners of exactly these static dimensions."""
        places = sorted(self.places.get(key, ()))
        dims = self._winners.dims(places)
        if not self._have(key, dims):
            having = [self._have(key, [each]) for each in dims]
            for place, has in zip(places, having, strict=True):
                if not has:
                    self._winners.bad(place, "its dimensions are not those by which it is found")
            places, dims = [*compress(places, having)], [*compress(dims, having)]
        return self._sized(places, dims)

    def _have(self, key: Hashable, dims: Sequence[Any]) -> bool:
        """True if the key of all these dimensions is ``key``."""
        try:
            return [*map(self._values, dims)].count(key) == len(dims)
        except (KeyError, TypeError):
            return False

    def _sized(self, places: Sequence[int], dims: Sequence[Any]) -> Neighbours:
        return Neighbours.sized(self._op, places, dims, lambda place: self._winners.bad(place, "a size is no number"))

    def _keep(self, key: Hashable, found: Neighbours) -> None:
        self._held += 1 + len(found.places)
        if self._held > _MOST_HELD * max(self._winners.count, 1024):
            self._found.clear()
            self._held = 1 + len(found.places)
        self._found[key] = found

    # --- winners that transfer

    def _movers_like(self, dims: Mapping[str, Any]) -> _Movers | None:
        """The winners that transfer, and have the static dimensions ``dims`` but for those along which they do."""
        fixed = self._fixed_values(dims)
        if fixed not in self._movers:
            places = sorted(self._transferring.intersection(self._all_like(fixed))) if self._transferring else []
            self._movers[fixed] = self._movers_of(places)
        found = self._movers[fixed]
        return found if found.group.places else None

    @cached_property
    def _transferring(self) -> frozenset[int]:
        return frozenset(self._winners.transferring())

    def _all_like(self, fixed: Hashable) -> list[int]:
        return [place for key, places in self.places.items() if self._fixed_of(key) == fixed for place in places]

    def _movers_of(self, places: Sequence[int]) -> _Movers:
        dims = dict(zip(places, self._winners.dims(places), strict=True))
        group = self._sized(places, list(dims.values()))
        told = [(dims[place], self._winners.transfers(place)) for place in group.places]
        return _Movers(self._op, group, told)

    def _named(self, key: Hashable) -> dict[str, Any]:
        """The static dimensions of a key."""
        values: Any = key if len(self._static) != 1 else (key,)
        return dict(zip(self._static, values, strict=True))

    def _fixed_of(self, key: Hashable) -> Hashable:
        return self._fixed_values(self._named(key))

    def _bounds_along(self, dims: Mapping[str, Any], name: str) -> SizeNumbers:
        """The sizes along one dimension at which the set of winners may change."""
        fixed = self._fixed_values(dims)
        sizes = [self._named(key)[name] for key in self.places if self._fixed_of(key) == fixed]
        own = np.array([max(float(size), 1) for size in sizes if isinstance(size, int | float)], np.float64)
        movers = self._movers_like(dims)
        ends = [] if movers is None else movers.ends(name)
        return np.unique(np.concatenate([own, own + 1, *ends]))


class _Movers:
    """Winners that were verified at other static sizes than their own; their other static dimensions are equal.

    ``told``: the dimensions of each winner, and the sizes at which it was verified.
    """

    def __init__(self, op: Op, group: Neighbours, told: Sequence[_Told]) -> None:
        self.group = group
        self._own = {
            name: column for name, column in zip(op.near_along, group.columns, strict=True) if name in op.transfers
        }
        self._reach = {name: _reach(op, name, column, told) for name, column in self._own.items()}

    def reaching(self, dims: Mapping[str, Any]) -> Neighbours:
        """The winners that may answer at other static sizes than their own: each may differ in one of them."""
        count = len(self.group.places)
        reached, moved = np.ones(count, np.bool_), np.zeros(count, np.int8)
        for name, own in self._own.items():
            size, (low, high) = max(float(dims[name]), 1), self._reach[name]
            there = own == size
            reached &= there | ((low <= size) & (size <= high))
            moved += ~there
        return self.group.taken(np.flatnonzero(reached & (moved == 1)))

    def ends(self, name: str) -> Iterator[SizeNumbers]:
        """The sizes along one dimension at which a winner begins or ceases to answer."""
        low, high = self._reach[name]
        return iter((low, high + 1))


def _reach(op: Op, name: str, own: SizeNumbers, told: Sequence[_Told]) -> NDArray[np.float64]:
    """The least and the greatest size along a static dimension at which each winner may answer, ``[2, winners]``.

    These are its own, or those at which it was verified, if the op still declares that it transfers.
    """
    reach = np.stack([own, own])
    for index, (dims, transfers) in enumerate(told):
        if (transfer := transfers.get(name)) is not None:
            with contextlib.suppress(Exception):  # an author's function may raise anything
                least, greatest = checked_range(name, op.transfers[name], dims[name])
                reach[:, index] = max(least, transfer.low), min(greatest, transfer.high)
    return reach

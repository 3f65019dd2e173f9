"""Spans of sizes with one nearest winner, which save computing the distance to each winner again.

The sizes nearest to one winner form a convex region: all sizes between two of them, along one dimension with the others
equal, are nearest to it, too. Along a static dimension this is true within a stretch of sizes to which one set of
winners transfers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from ...arguments.specs import Value
from ...contract import Op
from ...problem import getter

_MOST = 1024

_Winner = TypeVar("_Winner")


FoundSpan = tuple[
    str, Callable[[Mapping[str, Value]], tuple[Value, ...]], tuple[Value, ...], list[type], int, int, _Winner
]
"""A span that was found: its dimension, a function that returns all others, their values and types, and its ends."""


class Spans(Generic[_Winner]):
    """Winners by the spans of sizes, along each dimension that may differ, to which they are the nearest.

    ``stretch(dims, name)`` is the last size of a static dimension's stretch; without it only dynamic dimensions have
    spans.
    """

    def __init__(self, op: Op, stretch: Callable[[Mapping[str, Value], str], float] | None = None) -> None:
        others = op.static | op.dynamic
        static = () if stretch is None else op.transfers
        self._along = [(name, getter(sorted(others - {name}))) for name in (*sorted(op.dynamic), *static)]
        self._stretches = {} if stretch is None else dict.fromkeys(static, stretch)
        self.known: dict[Hashable, dict[int, tuple[int, int, _Winner]]] = {}
        """The spans by everything of their sizes but the one dimension; empty if none was added."""
        self._latest: FoundSpan[_Winner] | None = None

    def find(self, dims: Mapping[str, Value]) -> _Winner | None:
        """The winner of a span that contains these dimensions; None without one.

        The ends of a span are sizes that were added.
        """
        span = self.span(dims)
        return None if span is None else span[-1]

    def span(self, dims: Mapping[str, Value]) -> FoundSpan[_Winner] | None:
        """The span that contains these dimensions; one object as long as only its own dimension changes."""
        latest = self._latest
        if latest is not None:
            name, others, fixed, kinds, first, last, _ = latest
            size, given = dims[name], others(dims)
            if type(size) is int and first <= size <= last and given == fixed and [*map(type, given)] == kinds:
                return latest
        return self._looked_up(dims) if self.known else None

    def _looked_up(self, dims: Mapping[str, Value]) -> FoundSpan[_Winner] | None:
        for name, others in self._along:
            size, fixed = dims[name], others(dims)
            spans = self.known.get(self._key(dims, name, fixed))
            if spans is not None and type(size) is int:
                for first, last, winner in spans.values():
                    if first <= size <= last:
                        self._latest = found = name, others, fixed, [*map(type, fixed)], first, last, winner
                        return found
        return None

    def add_ahead(
        self, dims: Mapping[str, Value], winner: _Winner, nearest: Callable[[Mapping[str, Value]], _Winner | None]
    ) -> None:
        """``add``, also for larger sizes that ``winner`` is the ``nearest`` to: a context grows token by token."""
        self.add(dims, winner)
        for name, _ in self._along:
            for further_size in self._beyond(dims, name):
                further = {**dims, name: further_size}
                if nearest(further) is winner:
                    self.add(further, winner)
                    break

    def _beyond(self, dims: Mapping[str, Value], name: str) -> tuple[int, ...]:
        size, stretch = dims[name], self._stretches.get(name)
        if not isinstance(size, int):
            return ()
        if stretch is None:
            return size * 2, size * 5 // 4
        end = stretch(dims, name)
        return (int(end),) if size < end < math.inf else ()

    def add(self, dims: Mapping[str, Value], winner: _Winner) -> None:
        """Record that ``winner`` is the nearest to these dimensions, and that no winner has exactly these."""
        if len(self.known) >= _MOST:
            self.known.clear()
        for name, others in self._along:
            size = dims[name]
            if type(size) is int:
                spans = self.known.setdefault(self._key(dims, name, others(dims)), {})
                first, last, _ = spans.get(id(winner), (size, size, winner))
                spans[id(winner)] = min(first, size), max(last, size), winner

    def _key(self, dims: Mapping[str, Value], name: str, fixed: tuple[Value, ...]) -> Hashable:
        stretch = self._stretches.get(name)
        return name, stretch and stretch(dims, name), *fixed, *map(type, fixed)

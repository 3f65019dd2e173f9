"""A counter of events for many threads, at the price of one C call per event."""

from __future__ import annotations

from itertools import count


class Counter:
    """``hit()`` counts one; it is a C function, 0.03 µs, and atomic."""

    __slots__ = ("_count", "hit")

    def __init__(self) -> None:
        self._count = count()
        self.hit = self._count.__next__

    @property
    def value(self) -> int:
        # the only way to read it without counting
        return int(repr(self._count).removeprefix("count(").removesuffix(")"))

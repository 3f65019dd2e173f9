"""A counter of events for many threads, at the price of one C call per event."""

from __future__ import annotations

from itertools import count


class Counter(count):  # type: ignore[type-arg]
    """``hit()`` counts one; it is a C function, 0.03 µs, and atomic. Each new size of a call makes a counter."""

    __slots__ = ()

    hit = count.__next__

    @property
    def value(self) -> int:
        """The number of events so far."""
        # the only way to read it without counting
        return int(repr(self).removeprefix(f"{type(self).__name__}(").removesuffix(")"))

"""The hot path's table: the shape of one of a call's tensors -> a short list of entries. Bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from ...forking import renewed_in_child
from ..torch_side.torch_private import TorchCheck
from .free_attributes import same

MOST_SHAPES = 4096
"""The most shapes per op. An entry takes about a kilobyte, and with more shapes each is rarely used again."""

MOST_ENTRIES = 32
"""The most entries per shape; they differ in weights, attributes, strides and dtypes, e.g. of twenty linear layers."""


class Entry(NamedTuple):
    """An answer to further calls: ``run(*values)`` takes all values of a call in the schema's order.

    check     the guard, called with the call's tensors, see ``CallParts.tensors`` and ``guards.matcher``
    plain     values that must equal ``CallParts.compared`` by ``free.same``; a ``Free`` equals any of its kind
    grad      the grad mode in which the entry holds, None for both
    hit       a function that counts a call
    resolved  the Resolved that it was made from, for explain
    """

    check: TorchCheck
    plain: tuple[Any, ...]
    grad: bool | None
    run: Callable[..., Any]
    hit: Callable[[], int]
    resolved: Any


Unpacked = tuple[TorchCheck, tuple[Any, ...], bool | None, Callable[..., Any], Callable[[], int], Any]
"""An entry as a plain tuple, which CPython unpacks three times as fast as a NamedTuple."""


def _never(*_values: Any) -> bool:
    return False


def _no_entry(plain: int) -> Unpacked:
    return (_never, (None,) * plain, None, _never, int, None)


class TableEntries:
    """The entries between two clears; a call that began before a clear goes on with the old ones.

    recent  the entry of the latest hit: most calls are like the call before, and a guard costs less than a look-up
    shapes  entries by ``CallParts.shape``

    Entries are plain tuples, which the hot path unpacks fastest.
    """

    __slots__ = ("recent", "shapes")

    def __init__(self, plain: int) -> None:
        self.recent = _no_entry(plain)
        self.shapes: dict[Hashable, tuple[Unpacked, ...]] = {}


class Table:
    """Entries of one op. Reading needs no lock: readers see immutable tuples in plain dicts.

    ``plain``: the number of a call's compared values, see ``CallParts.compared``.
    """

    def __init__(
        self,
        plain: int,
        most_shapes: int = MOST_SHAPES,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        self.now = TableEntries(plain)
        self.generation = 0
        self._plain = plain
        self._order: deque[Hashable] = deque()
        self._most_shapes = most_shapes
        self._most_entries = most_entries
        self._lock = renewed_in_child(self, "_lock", threading.Lock)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, shape: Hashable, entry: Unpacked, generation: int) -> None:
        """Add an entry that was resolved in ``generation``; nothing if the table has been cleared since."""
        lock = self._lock
        lock.acquire()  # in half the time of a with statement
        try:
            if generation != self.generation:
                return
            shapes = self.now.shapes
            known = shapes.get(shape)
            if known is not None:
                # the newest goes first: it was made because no other matched, e.g. for its conditions
                shapes[shape] = (entry, *known)[: self._most_entries]
                return
            shapes[shape] = (entry,)
            order = self._order
            order.append(shape)
            while len(order) > self._most_shapes:
                del shapes[order.popleft()]
        finally:
            lock.release()

    def find(
        self, shape: Hashable, tensors: tuple[Any, ...], plain: tuple[Any, ...], grad_enabled: bool
    ) -> Entry | None:
        """The entry that the hot path would use for a call, None without one; ``tensors`` must not be nested."""
        for entry in map(Entry._make, self.now.shapes.get(shape, ())):
            if (
                # first the lengths of lists: a guard for another number of tensors raises
                all(map(same, plain, entry.plain))
                and entry.check(*tensors)
                and (entry.grad is None or entry.grad is grad_enabled)
            ):
                return entry
        return None

    def remove(self, resolved: Any) -> None:
        with self._lock:
            now = self.now
            for shape, entries in now.shapes.items():
                if any(entry[-1] is resolved for entry in entries):
                    now.shapes[shape] = tuple([entry for entry in entries if entry[-1] is not resolved])
            if now.recent[-1] is resolved:
                now.recent = _no_entry(self._plain)

    def clear(self) -> None:
        """Drop all entries; answers that are being resolved now will not be added."""
        with self._lock:
            self.generation += 1
            self.now = TableEntries(self._plain)
            self._order.clear()

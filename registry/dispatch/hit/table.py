"""The hot path's table: the shape of one of a call's tensors -> a short list of entries. Bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from ...forking import renewed_in_child
from ..torch_side.torch_private import Check
from .free import same

MOST_SHAPES = 4096
"""Per op. An entry is about a kilobyte, and a model that makes more shapes than this profits little from each."""

MOST_ENTRIES = 32
"""Per shape: weights, attributes, strides and dtypes differ there, e.g. twenty linear layers behind one activation."""


class Entry(NamedTuple):
    """``run(*values)`` answers a call, all of whose values are given in the schema's order.

    check     called with the call's tensors, see ``CallParts.tensors`` and ``guards.matcher``
    plain     values that ``CallParts.compared`` must equal, as ``free.same`` says; ``Free`` where any of a kind will do
    grad      the grad mode in which it holds, None for both
    hit       counts an answer
    resolved  for explain
    """

    check: Check
    plain: tuple[Any, ...]
    grad: bool | None
    run: Callable[..., Any]
    hit: Callable[[], int]
    resolved: Any


Unpacked = tuple[Check, tuple[Any, ...], bool | None, Callable[..., Any], Callable[[], int], Any]
"""An entry as a plain tuple, which CPython takes apart three times as fast as a subclass of it."""


def _never(*_values: Any) -> bool:
    return False


def _no_entry(plain: int) -> Unpacked:
    return (_never, (None,) * plain, None, _never, int, None)


class TableEntries:
    """What is known between two clears; a call that began before a clear goes on with the old one.

    recent  the entry of the latest hit: most calls are like the call before, and a guard costs less than a look-up
    shapes  entries by ``CallParts.shape``

    They are plain tuples, for the hot path to take apart.
    """

    __slots__ = ("recent", "shapes")

    def __init__(self, plain: int) -> None:
        self.recent = _no_entry(plain)
        self.shapes: dict[Hashable, tuple[Unpacked, ...]] = {}


class Table:
    """Entries of one op. Read without a lock: what readers see are immutable tuples in plain dicts.

    ``plain``: how many values of a call are compared, see ``CallParts.compared``.
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
        """Add an entry that was resolved while the table was of ``generation``; a later one makes it stale."""
        with self._lock:
            if generation != self.generation:
                return
            shapes = self.now.shapes
            if shape not in shapes:
                self._order.append(shape)
            # conditions make an entry narrower, so the newest goes first: it was made because no other matched
            shapes[shape] = (entry, *shapes.get(shape, ()))[: self._most_entries]
            while len(self._order) > self._most_shapes:
                del shapes[self._order.popleft()]

    def find(
        self, shape: Hashable, tensors: tuple[Any, ...], plain: tuple[Any, ...], grad_enabled: bool
    ) -> Entry | None:
        """The entry that holds for a call, as the hot path would find it; ``tensors`` must not be nested ones."""
        for entry in map(Entry._make, self.now.shapes.get(shape, ())):
            if (
                # a guard of another number of tensors raises
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
        """Forget everything, also what is being resolved at the moment."""
        with self._lock:
            self.generation += 1
            self.now = TableEntries(self._plain)
            self._order.clear()

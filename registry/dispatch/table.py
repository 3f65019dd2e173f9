"""The hot path's table: form of the call -> shape of its first tensor -> a short list of entries. Bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from .torch_private import Check

Form = Hashable
"""How many positional values, and the names of the others: ``2`` or ``(1, "dim")``."""

MOST_SHAPES = 4096
"""Per op. An entry is about a kilobyte, and a model that makes more shapes than this profits little from each."""

MOST_ENTRIES = 16
"""Per shape: attributes, strides and dtypes differ there."""


class Entry(NamedTuple):
    """``run(*given, *rest)`` answers a call whose values ``matches(*given)``.

    ``grad``: the grad mode in which it holds, None for both. ``resolved`` is for explain.
    """

    matches: Check
    run: Callable[..., Any]
    rest: tuple[Any, ...]
    grad: bool | None
    resolved: Any


def form_of(args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Form:
    """The form of a call."""
    return (len(args), *attributes) if attributes else len(args)


class Table:
    """Entries by form and shape. Read without a lock: what readers see are immutable tuples in plain dicts."""

    def __init__(self, most_shapes: int = MOST_SHAPES, most_entries: int = MOST_ENTRIES) -> None:
        self.entries: dict[Form, dict[Hashable, tuple[Entry, ...]]] = {}
        self.generation = 0
        self._order: deque[tuple[Form, Hashable]] = deque()
        self._most_shapes = most_shapes
        self._most_entries = most_entries
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, form: Form, shape: Hashable, entry: Entry, generation: int) -> None:
        """Add an entry that was resolved while the table was of ``generation``; a later one makes it stale."""
        with self._lock:
            if generation != self.generation:
                return
            shapes = self.entries.setdefault(form, {})
            if shape not in shapes:
                self._order.append((form, shape))
            # conditions make an entry narrower, so the newest goes first: it was made because no other matched
            shapes[shape] = (entry, *shapes.get(shape, ()))[: self._most_entries]
            while len(self._order) > self._most_shapes:
                oldest_form, oldest_shape = self._order.popleft()
                del self.entries[oldest_form][oldest_shape]

    def find(self, form: Form, given: tuple[Any, ...], grad_enabled: bool) -> Entry | None:
        """The entry that holds for a call, as the hot path would find it."""
        try:
            entries = self.entries[form][given[0].shape]
        except (LookupError, AttributeError, TypeError, RuntimeError):
            return None
        for entry in entries:
            if entry.matches(*given) and (entry.grad is None or entry.grad is grad_enabled):
                return entry
        return None

    def clear(self) -> None:
        """Forget everything, also what is being resolved at the moment."""
        with self._lock:
            self.generation += 1
            self.entries.clear()
            self._order.clear()

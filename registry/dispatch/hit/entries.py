"""What a resolved call leaves in the table of the hot path, for calls like it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import is_grad_enabled

from ...arguments.schema import Schema
from .call_parts import CallParts
from .free import free_like
from .guards import Condition, matcher
from .table import Entry, Table, Unpacked


class EntryMaker:
    """Makes the entries of one op, from values whose lists are tuples."""

    def __init__(self, schema: Schema) -> None:
        self.parts = CallParts(schema)
        self._free = frozenset(place for place, one in enumerate(schema.parameters) if one.kind in _MAY_DIFFER)
        self._names = schema.names

    def known(self, table: Table, given: tuple[Any, ...]) -> Entry | None:
        """The entry that holds for a call that gives ``given``."""
        parts = self.parts
        return table.find(parts.shape(given), parts.tensors(given), parts.compared(given), is_grad_enabled())

    def of_shape(self, table: Table, given: tuple[Any, ...]) -> tuple[Unpacked, ...]:
        """The entries of the shape by which those of such a call are found."""
        return table.now.shapes.get(self.parts.shape(given), ())

    def add(
        self,
        table: Table,
        generation: int,
        calls: tuple[tuple[Any, ...], tuple[Any, ...]],
        answer: tuple[Callable[..., Any], Callable[[], int], Any],
        conditions: Sequence[Condition],
        read: Collection[str],
    ) -> None:
        """Let an answer (its run, its counter, what it rests on) answer further calls like this one.

        ``calls``: what the call gave, and what the schema made of it. ``read``: names of the attributes that the
        answer depends on; the others may differ in further calls.
        """
        (given, values), (run, hit, resolved) = calls, answer
        parts, plain = self.parts, self.parts.plain
        tensors = parts.tensors(given)
        present = [tensor for tensor in tensors if tensor is not None]
        if not present:
            return
        coerced: dict[int, Any] = {}
        expected = list(parts.compared(given))
        for number, place in enumerate(plain):
            value = values[place]
            # the items of a list are what the schema makes of them
            if given[place] is not value and not isinstance(value, tuple):
                coerced[place] = value
            elif place in self._free and self._names[place] not in read:
                expected[number] = free_like(expected[number]) or expected[number]
        if coerced:
            run = _coerced(run, coerced)
        grad = None
        for tensor in present:
            if tensor.requires_grad:
                grad = is_grad_enabled()
        entry = Entry(matcher(tensors, conditions), tuple(expected), grad, run, hit, resolved)
        table.add(parts.shape(given), entry, generation)


_MAY_DIFFER = frozenset({"int", "float", "Scalar", "int[]"})
"""The kinds of attributes that another value may take the place of where nobody has looked at the first."""


def _coerced(run: Callable[..., Any], plain: Mapping[int, Any]) -> Callable[..., Any]:
    """``run`` for a call that gave e.g. 1 for 1.0: the plan gets what the schema made of its plain values."""

    def coerced(*given: Any) -> Any:
        return run(*[plain.get(place, value) for place, value in enumerate(given)])

    return coerced

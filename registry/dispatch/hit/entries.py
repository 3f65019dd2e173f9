"""Makes the table entries of the hot path by which resolved calls answer further, similar calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from torch import is_grad_enabled

from ...arguments.schema import Schema
from ..torch_side.torch_private import TorchCheck
from .call_parts import CallParts
from .free_attributes import Free, free_like
from .guards import Condition, matcher, quick_matcher
from .table import Entry, Table


class EntryMaker:
    """Makes the entries of one op, from values whose lists are tuples."""

    def __init__(self, schema: Schema) -> None:
        self.parts = CallParts(schema)
        self._compared, self._tensors = self.parts.compared, self.parts.tensors
        self._free = frozenset(place for place, one in enumerate(schema.parameters) if one.kind in _MAY_DIFFER)
        self._names = schema.names
        tensors = [one for one in schema.parameters if one.kind == "Tensor"]
        # with lists the index of a tensor is not known
        listed = any(one.kind == "Tensor[]" for one in schema.parameters)
        self._written = () if listed else tuple(place for place, one in enumerate(tensors) if one.mutated)

    def known(self, table: Table, given: tuple[Any, ...]) -> Entry | None:
        """The entry of the table that answers a call with the values ``given``; None without one."""
        parts = self.parts
        return table.find(parts.shape(given), parts.tensors(given), parts.compared(given), is_grad_enabled())

    def free(self, values: tuple[Any, ...], read: Collection[str]) -> list[FreeValue]:
        """Placeholders for the attributes that may differ in further calls: the answer depends on those in ``read``."""
        parts, names = self.parts, self._names
        compared = zip(parts.plain, parts.compared(values), strict=True)
        found = [
            (number, free_like(value))
            for number, (place, value) in enumerate(compared)
            if place in self._free and names[place] not in read
        ]
        return [(number, free) for number, free in found if free is not None]

    def add(
        self,
        table: Table,
        generation: int,
        calls: tuple[tuple[Any, ...], tuple[Any, ...]],
        answer: tuple[Callable[..., Any], Callable[[], int], Any],
        conditions: Sequence[Condition],
        read: Collection[str],
    ) -> None:
        """Add an entry so that ``answer`` (run, counter, Resolved) also answers further calls like this one.

        ``calls``: the values as the call gave them, and as the schema coerced them. ``read``: names of the attributes
        that the answer depends on; other attributes may differ in further calls.
        """
        (given, values), (run, hit, resolved) = calls, answer
        present = [tensor for tensor in self.parts.tensors(given) if tensor is not None]
        if not present:
            return
        # without tuples: coercion makes a new tuple, but keeps its items
        coerced = {
            place: values[place]
            for place in self.parts.plain
            if given[place] is not values[place] and not isinstance(values[place], tuple)
        }
        free = [one for one in self.free(given, read) if self.parts.plain[one[0]] not in coerced]
        if coerced:
            run = _coerced(run, coerced)
        grad = is_grad_enabled() if any(tensor.requires_grad for tensor in present) else None
        check = self.check_maker(conditions)
        self.add_like(table, generation, self.parts.shape(given), given, free, (grad, run, hit, resolved), check)

    def check_maker(self, conditions: Sequence[Condition], distinct: int = 0) -> Callable[..., TorchCheck]:
        """``make(*tensors)``: the guard of an entry for calls that are like one with these tensors.

        ``distinct``: the number of the tensors, if none of them is missing or given twice.
        """
        written = self._written
        if distinct and len(written) < 2:
            return quick_matcher(distinct, conditions)
        return lambda *tensors: matcher(tensors, conditions, written)

    def add_like(
        self,
        table: Table,
        generation: int,
        shape: Hashable,
        given: tuple[Any, ...],
        free: Iterable[FreeValue],
        answer: tuple[bool | None, Callable[..., Any], Callable[[], int], Any],
        make_check: Callable[..., TorchCheck],
    ) -> None:
        """``add`` for a call whose values need no coercion; ``answer`` is (grad mode, run, counter, Resolved).

        ``shape`` is the shape by which such calls are found, ``make_check`` a result of ``check_maker``.
        """
        grad, run, hit, resolved = answer
        expected = self._compared(given)
        if free:
            compared = [*expected]
            for number, value in free:
                compared[number] = value
            expected = tuple(compared)
        check = make_check(*self._tensors(given))
        table.add(shape, (check, expected, grad, run, hit, resolved), generation)


FreeValue = tuple[int, Free]
"""The place of an attribute among the compared values, and the placeholder that equals each of its values."""

_MAY_DIFFER = frozenset({"int", "float", "Scalar", "int[]"})
"""The kinds of attributes whose value may differ in further calls, if the answer does not depend on it."""


def _coerced(run: Callable[..., Any], plain: Mapping[int, Any]) -> Callable[..., Any]:
    """``run`` for calls that give e.g. 1 for 1.0: it gets the coerced values in ``plain``, by place."""

    def coerced(*given: Any) -> Any:
        return run(*[plain.get(place, value) for place, value in enumerate(given)])

    return coerced

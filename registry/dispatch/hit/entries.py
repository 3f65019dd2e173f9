"""What a resolved call leaves in the table of the hot path, for calls like it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import is_grad_enabled

from ...arguments.schema import Schema
from .free import free_like
from .guards import Condition, matcher
from .table import Entry, Table


class Entries:
    """Makes the entries of one op.

    ``tensors`` and ``plain``: where among the schema's values its tensors are, and where the others. A call with a list
    leaves nothing: its plan is found by its specs.
    """

    def __init__(self, schema: Schema) -> None:
        kinds = [parameter.kind for parameter in schema.parameters]
        self._usable = not schema.has_lists  # the guards are made for a tensor a parameter
        self._free = tuple(place for place, kind in enumerate(kinds) if kind in {"int", "float"})
        self.tensors = tuple(place for place, kind in enumerate(kinds) if kind == "Tensor")
        self.plain = tuple(place for place, kind in enumerate(kinds) if kind != "Tensor")
        self._names = schema.names

    def known(self, table: Table, given: tuple[Any, ...]) -> Entry | None:
        """The entry that holds for a call that gives ``given``."""
        if not self._usable or not given or not isinstance(given[0], torch.Tensor):
            return None
        tensors = tuple([given[place] for place in self.tensors])
        plain = tuple([given[place] for place in self.plain])
        return table.find(given[0].shape, tensors, plain, is_grad_enabled())

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
        if not self._usable or not given or not isinstance(given[0], torch.Tensor):
            return
        coerced = {place: values[place] for place in self.plain if given[place] is not values[place]}
        if coerced:
            run = _coerced(run, coerced)
        tensors = [given[place] for place in self.tensors]
        grad = is_grad_enabled() if any(value is not None and value.requires_grad for value in tensors) else None
        free = {place for place in self._free if place not in coerced and self._names[place] not in read}
        expected = [(place in free and free_like(given[place])) or given[place] for place in self.plain]
        check = matcher(tensors, conditions)
        table.add(given[0].shape, Entry(check, tuple(expected), grad, run, hit, resolved), generation)


def _coerced(run: Callable[..., Any], plain: Mapping[int, Any]) -> Callable[..., Any]:
    """``run`` for a call that gave e.g. 1 for 1.0: the plan gets what the schema made of its plain values."""

    def coerced(*given: Any) -> Any:
        return run(*[plain.get(place, value) for place, value in enumerate(given)])

    return coerced

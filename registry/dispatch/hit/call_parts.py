"""The parts of a call's values that a table entry checks: its tensors, and the other values, which are compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any

import torch

from ...arguments.schema import Parameter, Schema


def key_parameter(parameters: Sequence[Parameter]) -> Parameter | None:
    """The parameter by whose shape a call's entries are found: a required tensor, else a list, else any tensor."""
    tensors = [parameter for parameter in parameters if parameter.holds_tensors]
    return min(tensors, key=lambda one: (one.optional, one.kind != "Tensor"), default=None)


_Getter = Callable[[Sequence[Any]], tuple[Any, ...]]


class CallParts:
    """Splits the values of a call into tensors and compared values; a list among the values must be a tuple.

    plain     places of the compared values; ``lists``: those of lists of tensors, of which the length is compared
    compared  a function that returns the compared values, in the order of ``plain``
    tensors   a function that returns the tensors in the schema's order, None for a missing one, a list's one by one
    """

    def __init__(self, schema: Schema) -> None:
        parameters = schema.parameters
        self.plain = tuple([place for place, one in enumerate(parameters) if one.kind != "Tensor"])
        self.lists = frozenset(place for place, one in enumerate(parameters) if one.kind == "Tensor[]")
        self._tensors = tuple([place for place, one in enumerate(parameters) if one.holds_tensors])
        self.compared: _Getter = self._with_lengths if self.lists else _getter(self.plain)
        self.tensors: _Getter = self._with_items if self.lists else _getter(self._tensors)
        key = key_parameter(parameters)
        self._key = None if key is None else parameters.index(key)
        self.key = key.name if key is not None and key.kind == "Tensor" and not key.optional else ""
        """The name of the tensor by whose shape entries are found; "" if it may be missing, or one of a list."""

    def _with_items(self, values: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        for place in self._tensors:
            found += values[place] if place in self.lists else (values[place],)
        return tuple(found)

    def _with_lengths(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([len(values[place]) if place in self.lists else values[place] for place in self.plain])

    def shape(self, values: Sequence[Any]) -> Hashable:
        """The shape by which entries are found; None if the key parameter has no tensor."""
        key = None if self._key is None else values[self._key]
        if isinstance(key, tuple):
            key = key[0] if key else None
        return None if key is None else key.shape


def _getter(places: Sequence[int]) -> _Getter:
    """A function that returns the values of a tuple at these places as a tuple, in C: a lambda takes twice as long."""
    if len(places) > 1:
        return itemgetter(*places)
    place = places[0] if places else 0
    return itemgetter(slice(place, place + len(places)))


GIVEN_AS_LIST = frozenset({list, torch.Size})
"""Types of lists in calls, besides tuples. They are converted to tuples, which cannot change while the call runs."""


def without_lists(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values with every list as a tuple."""
    return tuple([tuple(value) if type(value) in GIVEN_AS_LIST else value for value in values])

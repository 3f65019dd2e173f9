"""Which winner is the nearest, without measuring the distance to each: known from sizes asked before.

Sizes nearest to one winner form a convex region, so that whatever lies between two of them along one dimension, the
other dimensions being equal, is nearest to it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from ...arguments.specs import Value
from ...contract import Op
from ...problem import getter

_MOST = 1024

_Winner = TypeVar("_Winner")


class Spans(Generic[_Winner]):
    """Winners by the spans of sizes, along each of an op's dynamic dimensions, to which they are the nearest."""

    def __init__(self, op: Op) -> None:
        others = op.static | op.dynamic
        self._along = [(name, getter(sorted(others - {name}))) for name in sorted(op.dynamic)]
        self._spans: dict[Hashable, dict[int, tuple[int, int, _Winner]]] = {}

    def find(self, dims: Mapping[str, Value]) -> _Winner | None:
        """The winner of a span in which these dimensions lie; None where none is known.

        A size at the end of a span was asked before.
        """
        for name, others in self._along:
            size, fixed = dims[name], others(dims)
            spans = self._spans.get((name, *fixed, *map(type, fixed)))
            if spans is not None and type(size) is int:
                for first, last, winner in spans.values():
                    if first <= size <= last:
                        return winner
        return None

    def add_ahead(
        self, dims: Mapping[str, Value], winner: _Winner, nearest: Callable[[Mapping[str, Value]], _Winner | None]
    ) -> None:
        """``add``, and how far beyond the dimensions ``winner`` is the ``nearest``: a context grows token by token."""
        self.add(dims, winner)
        for name, _ in self._along:
            size = dims[name]
            for further_size in (size * 2, size * 5 // 4) if isinstance(size, int) else ():
                further = {**dims, name: further_size}
                if nearest(further) is winner:
                    self.add(further, winner)
                    break

    def add(self, dims: Mapping[str, Value], winner: _Winner) -> None:
        """Tell that ``winner`` is the nearest to these dimensions, and none is of exactly these."""
        if len(self._spans) >= _MOST:
            self._spans.clear()
        for name, others in self._along:
            size, fixed = dims[name], others(dims)
            if type(size) is int:
                spans = self._spans.setdefault((name, *fixed, *map(type, fixed)), {})
                first, last, _ = spans.get(id(winner), (size, size, winner))
                spans[id(winner)] = min(first, size), max(last, size), winner

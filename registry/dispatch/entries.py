"""What a resolved call leaves in the table of the hot path, for calls like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import is_grad_enabled

from ..arguments.schema import tensors_in
from ..contract import Op
from .hit.guards import matcher
from .hit.table import Entry, Table
from .resolve.candidates import Resolved
from .resolve.ranges import Ranged


class Entries:
    """Makes the entries of one op. ``tensors`` and ``plain``: where among the schema's values its tensors are, and
    where the others."""

    def __init__(self, op: Op) -> None:
        kinds = [parameter.kind for parameter in op.parsed.parameters]
        self._usable = not op.parsed.has_lists  # the guards are made for a tensor a parameter
        self.tensors = tuple(place for place, kind in enumerate(kinds) if kind == "Tensor")
        self.plain = tuple(place for place, kind in enumerate(kinds) if kind != "Tensor")

    def known(self, table: Table, given: tuple[Any, ...], *, anywhere: bool = False) -> Entry | None:
        """The entry that holds for ``given``; with ``anywhere`` among those for many shapes only."""
        if not self._usable or not given or not isinstance(given[0], torch.Tensor):
            return None
        tensors = tuple(given[place] for place in self.tensors)
        plain = tuple(given[place] for place in self.plain)
        return table.find(None if anywhere else given[0].shape, tensors, plain, is_grad_enabled())

    def add(
        self, table: Table, generation: int, given: tuple[Any, ...], values: tuple[Any, ...], resolved: Resolved
    ) -> None:
        """Let ``resolved`` answer further calls that give what ``given`` is, of which the schema made ``values``."""
        if not self._usable or not given or not isinstance(given[0], torch.Tensor):
            return
        run = resolved.run
        if any(given[place] is not values[place] for place in self.plain):
            run = _coerced(run, {place: values[place] for place in self.plain})
        grad = is_grad_enabled() if any(tensor.requires_grad for tensor in tensors_in(values)) else None
        plain = tuple(given[place] for place in self.plain)
        if isinstance(resolved, Ranged):
            table.add_anywhere(Entry(resolved.check_rows, plain, grad, run, resolved.calls.hit, resolved), generation)
            return
        check = matcher([given[place] for place in self.tensors], resolved.conditions)
        table.add(given[0].shape, Entry(check, plain, grad, run, resolved.calls.hit, resolved), generation)


def _coerced(run: Callable[..., Any], plain: Mapping[int, Any]) -> Callable[..., Any]:
    """``run`` for a call that gave e.g. 1 for 1.0: the plan gets what the schema made of its plain values."""

    def coerced(*given: Any) -> Any:
        return run(*[plain.get(place, value) for place, value in enumerate(given)])

    return coerced

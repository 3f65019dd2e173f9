"""Other calls of one problem: tensors of one more dimension, and a reduced dimension that is not the last.

The inputs of an op have one form, which callers need not give: a problem counts rows of any number of dimensions, and
an op may have its callers name the dimension that it reduces. An implementation that knows that form alone is right
for the inputs, and wrong for calls of the same problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ..arguments.schema import tensors_in, with_tensors
from ..contract import Op
from ..problem import Problem
from .poisoned_layouts import PoisonedLayout

LAYOUTS_OF_VIEWS: tuple[PoisonedLayout, ...] = ("contiguous", "sliced")
"""Layouts in which such calls are tried: where tensors are sliced, no one distance lies between all rows."""
_DIM = "dim"


def _deeper(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(max(tensor.dim() - 1, 1))


def _dim_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(-1, 0).contiguous()


_VIEWS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"deeper": _deeper, "dim-first": _dim_first}
"""The names of inputs. deeper: with a dimension of one element before the last one, or after an only one. dim-first:
with the last dimension moved to the beginning, where the attribute ``dim`` names it."""


def other_views(op: Op, problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Names and values of calls of the same problem on the same numbers, as far as the op has such calls.

    The tensors of the highest rank change, but no weights: the rows of a call are not those of a table.
    """
    named = dict(zip(op.parsed.names, values, strict=True))
    moving = {name: value for name, value in named.items() if name not in op.weights}
    rank = max((tensor.dim() for tensor in tensors_in(tuple(moving.values()))), default=0)
    for which, view in _VIEWS.items():
        if not rank or (view is _dim_first and named.get(_DIM) != -1):
            continue
        moved = with_tensors(tuple(moving.values()), partial(_of_rank, rank, view))
        found = {**named, **dict(zip(moving, moved, strict=True)), **({_DIM: 0} if view is _dim_first else {})}
        if _is_posed(op, problem, tuple(found.values())):
            yield which, tuple(found.values())


def _of_rank(rank: int, view: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    return view(tensor) if tensor.dim() == rank else tensor


def _is_posed(op: Op, problem: Problem, values: tuple[Any, ...]) -> bool:
    try:
        return op.pose(op.arguments(values), problem) == problem
    except Exception:  # an op may raise anything for tensors that it does not take
        return False

"""Other calls of one problem: tensors of one more dimension, another reduced dimension, other masks, fewer gradients.

The inputs of an op have one form, which callers need not give: a problem counts rows of any number of dimensions, and
an op may have its callers name the dimension that it reduces, take one mask of each head as well as one of each batch,
and be asked for some of its gradients alone. An implementation that knows that form alone is right for the inputs, and
wrong for calls of the same problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ..arguments.schema import tensors_in, with_tensors
from ..contract import Op
from ..faults.device_faults import out_of_memory
from ..problem import Problem
from .numerics import reference64
from .poisoned_layouts import PoisonedLayout

_LAYOUTS: tuple[PoisonedLayout, ...] = ("contiguous", "sliced")
_DIM = "dim"
_MASK = "mask"
_MASK_RANK = 4
_NEED = "need_"
_ALIKE: Mapping[str, Any] = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}


def _deeper(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(max(tensor.dim() - 1, 1))


def _dim_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(-1, 0).contiguous()


_VIEWS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"deeper": _deeper, "dim-first": _dim_first}
"""The names of inputs. deeper: with a dimension of one element before the last one, or after an only one. dim-first:
with the last dimension moved to the beginning, where the attribute ``dim`` names it."""


def layouts_of_views(device_type: str) -> tuple[PoisonedLayout, ...]:
    """The layouts in which other views are tried: of a sliced tensor not all rows are equally far apart.

    None on GPUs: what the kernels for them make of such calls has not been seen yet.
    """
    return _LAYOUTS if device_type == "cpu" else ()


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
        call = tuple(found.values())
        if _is_posed(op, problem, call) and _is_same(op, values, call, view):
            yield which, call
    # other tensors of an op without numbers may have been made with the mask, as out and lse of a gradient are
    if _is_of_batches(named.get(_MASK)) and op.numbers:
        sizes = {size for tensor in tensors_in(values) for size in tensor.shape if size > 1}
        masks = (_of_heads(named[_MASK], size) for size in sorted(sizes))
        calls = (tuple({**named, _MASK: mask}.values()) for mask in masks)
        yield from (
            ("per-head", call) for call in calls if _is_posed(op, problem, call) and _is_taken(op, values, call)
        )
    fewer = ((name, tuple({**named, **needs}.values())) for name, needs in _each_alone(named))
    yield from ((f"{name} alone", call) for name, call in fewer if _is_posed(op, problem, call) and _makes(op, call))


def _each_alone(named: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """For each gradient that may be needed, its attribute ``need_<input>`` and those of all: only it is needed."""
    needs = {name: value for name, value in named.items() if name.startswith(_NEED)}
    none = {name: [0] * len(value) if isinstance(value, list | tuple) else False for name, value in needs.items()}
    for name, value in needs.items() if len(needs) > 1 else ():
        yield name, {**none, name: value}


def _is_of_batches(mask: Any) -> bool:
    """Whether it may be ``[batch, 1, queries, keys]``: other ops have masks of elements, or of pixels, by this name."""
    return isinstance(mask, torch.Tensor) and mask.dim() == _MASK_RANK and mask.shape[1] == 1


def _of_heads(mask: torch.Tensor, heads: int) -> torch.Tensor:
    """One mask of each of so many heads, for all batches, from one of each batch for all heads."""
    return torch.cat([mask[:1].roll(head, -2) for head in range(heads)], 1)


def _of_rank(rank: int, view: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    return view(tensor) if tensor.dim() == rank else tensor


def _is_same(
    op: Op, values: tuple[Any, ...], call: tuple[Any, ...], view: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    """Whether the op makes the same of both: one that does not look at ranks may make no sense of others."""
    try:
        pairs = list(zip(reference64(op, values), reference64(op, call), strict=True))
        moved = [(one, other.movedim(0, -1) if view is _dim_first else other) for one, other in pairs]
        return all(torch.allclose(one.double(), other.double().reshape(one.shape), **_ALIKE) for one, other in moved)
    except Exception as fault:  # an op may raise anything for tensors that it does not take
        if out_of_memory(fault):
            raise
        return False


def _is_taken(op: Op, values: tuple[Any, ...], call: tuple[Any, ...]) -> bool:
    """Whether the op makes results of the same shapes of both: its problem may tell nothing of what was exchanged."""
    try:
        pairs = zip(reference64(op, values), reference64(op, call), strict=True)
        return all(one.shape == other.shape for one, other in pairs)
    except Exception as fault:  # likewise
        if out_of_memory(fault):
            raise
        return False


def _makes(op: Op, values: tuple[Any, ...]) -> bool:
    """Whether a call has any output: one that needs the gradient of an absent bias alone has none."""
    specs = op.output_specs(op.arguments(values), torch.device("cpu")).values()
    return any(spec.nbytes for spec in specs)


def _is_posed(op: Op, problem: Problem, values: tuple[Any, ...]) -> bool:
    try:
        return op.pose(op.arguments(values), problem) == problem
    except Exception:  # likewise
        return False

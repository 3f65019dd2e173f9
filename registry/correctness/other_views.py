"""Other calls of one problem: tensors of more dimensions, another reduced dimension, other masks, fewer gradients.

The inputs of an op have one form, which callers need not give: a problem counts rows of any number of dimensions, and
an op may have its callers name the dimension that it reduces, take one mask of each head as well as one of each batch,
and be asked for some of its gradients alone. An implementation that knows that form alone is right for the inputs, and
wrong for calls of the same problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..arguments.schema import tensors_in, with_tensors
from ..contract import Op
from ..problem import Problem
from .poisoned_layouts import PoisonedLayout
from .taken import is_posed, reference_if_taken

LAYOUTS_OF_VIEWS: tuple[PoisonedLayout, ...] = ("contiguous", "sliced")
"""In which other views are tried: of a sliced tensor not all rows are equally far apart."""
_DIM = "dim"
_MASK = "mask"
_MASK_RANK = 4
_NEED = "need_"
_HEAD_SIZE = "head_size"
_Results = tuple[torch.Tensor, ...]
_ALIKE: Mapping[str, Any] = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}


def _deeper(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(max(tensor.dim() - 1, 1))


def _dim_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(-1, 0).contiguous()


def _split(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(*_parts(tensor.shape[0]), *tensor.shape[1:])


def _split_apart(tensor: torch.Tensor) -> torch.Tensor:
    return _split(tensor).unsqueeze(1)


def _dim_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _dim_middle(tensor: torch.Tensor) -> torch.Tensor:
    return _split(tensor).movedim(-1, 1).contiguous()


def _parts(size: int) -> tuple[int, int]:
    """Two factors of a size, the greater one last, as like as they may be without being equal."""
    least = max(one for one in range(1, math.isqrt(max(size - 1, 1)) + 1) if size % one == 0)
    return least, size // least


_VIEWS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "deeper": _deeper,
    "split": _split,
    "split-apart": _split_apart,
    "dim-first": _dim_first,
    "dim-middle": _dim_middle,
    "dim-last": _dim_last,
}
"""The names of inputs. deeper: with a dimension of one element before the last one, or after an only one. split: the
first dimension is two. split-apart: these have one of one element between them. dim-first, dim-middle, dim-last: with
the last dimension moved to the beginning, between two others or nowhere, where the attribute ``dim`` names it, counted
from the front. Beside these, heads-apart: with a dimension of heads before the last one, where the op has
``head_size``."""
_REDUCED: Mapping[str, int] = {"dim-first": 0, "dim-middle": 1}
_ROWS = ("split", "split-apart")
"""Views of all tensors whose first dimension is that of the tensors of the highest rank."""


def layouts_of_views(device_type: str) -> tuple[PoisonedLayout, ...]:
    """The layouts in which other views are tried, none on GPUs: not all kernels for them have met such calls yet."""
    return LAYOUTS_OF_VIEWS if device_type == "cpu" else ()


def other_views(op: Op, problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Names and values of calls of the same problem on the same numbers, as far as the op has such calls.

    The tensors of the highest rank change, where rows are split all that have these rows, but no weights: the rows of a
    call are not those of a table.
    """
    named, found = dict(zip(op.parsed.names, values, strict=True)), reference_if_taken(op, values)
    for which in _VIEWS:
        call = viewed(op, values, which)
        if call is None or not is_posed(op, problem, call):
            continue
        if is_same(op, found, call, _REDUCED.get(which, -1)):
            yield which, call
    apart = _heads_apart(op, values, named.get(_HEAD_SIZE))
    if apart is not None and is_posed(op, problem, apart) and is_same(op, found, apart):
        yield "heads-apart", apart
    # other tensors of an op without numbers may have been made with the mask, as out and lse of a gradient are
    if _is_of_batches(named.get(_MASK)) and op.numbers:
        sizes = {size for tensor in tensors_in(values) for size in tensor.shape if size > 1}
        masks = (_of_heads(named[_MASK], size) for size in sorted(sizes))
        calls = (tuple({**named, _MASK: mask}.values()) for mask in masks)
        posed = (call for call in calls if is_posed(op, problem, call) and _has_same_shapes(op, found, call))
        yield from (("per-head", call) for call in posed)
    fewer = ((name, tuple({**named, **needs}.values())) for name, needs in _each_alone(named))
    yield from ((f"{name} alone", call) for name, call in fewer if is_posed(op, problem, call) and _makes(op, call))


def _each_alone(named: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """For each gradient that may be needed, its attribute ``need_<input>`` and those of all: only it is needed."""
    needs = {name: value for name, value in named.items() if name.startswith(_NEED)}
    none = {name: [0] * len(value) if isinstance(value, list | tuple) else False for name, value in needs.items()}
    for name, value in needs.items() if len(needs) > 1 else ():
        yield name, {**none, name: value}


def _heads_apart(op: Op, values: tuple[Any, ...], size: Any) -> tuple[Any, ...] | None:
    """The values with a dimension of heads of that size before the last one; None where the last one has no such."""
    rank, moving = _rank(op, values), tensors_in(tuple(_moving(op, values).values()))
    if not isinstance(size, int) or any(size < 1 or one.shape[-1] % size for one in moving if one.dim() == rank > 0):
        return None
    return _moved(op, values, lambda tensor: tensor.unflatten(-1, (-1, size))) if rank else None


def _is_of_batches(mask: Any) -> bool:
    """Whether a mask may be ``[batch, 1, queries, keys]``: other ops so name masks of elements, or of pixels."""
    return isinstance(mask, torch.Tensor) and mask.dim() == _MASK_RANK and mask.shape[1] == 1


def _of_heads(mask: torch.Tensor, heads: int) -> torch.Tensor:
    """One mask of each of so many heads, for all batches, from one of each batch for all heads."""
    return torch.cat([mask[:1].roll(head, -2) for head in range(heads)], 1)


def viewed(op: Op, values: tuple[Any, ...], which: str) -> tuple[Any, ...] | None:
    """The values in a view; None where they have no such view."""
    named = dict(zip(op.parsed.names, values, strict=True))
    if not (rank := _rank(op, values)) or (which.startswith(_DIM) and named.get(_DIM) != -1):
        return None
    found = dict(zip(named, _moved(op, values, _VIEWS[which], rows=which in _ROWS), strict=True))
    dim = {_DIM: _REDUCED.get(which, rank - 1)} if which.startswith(_DIM) else {}
    return tuple({**found, **dim}.values())


def _moving(op: Op, values: tuple[Any, ...]) -> Mapping[str, Any]:
    """The values that change, by their names."""
    return {name: value for name, value in zip(op.parsed.names, values, strict=True) if name not in op.weights}


def _rank(op: Op, values: tuple[Any, ...]) -> int:
    return max((tensor.dim() for tensor in tensors_in(tuple(_moving(op, values).values()))), default=0)


def _moved(
    op: Op, values: tuple[Any, ...], view: Callable[[torch.Tensor], torch.Tensor], *, rows: bool = False
) -> tuple[Any, ...]:
    """The values with views of the tensors of the highest rank; with ``rows`` of all that have as many rows."""
    moving, rank = _moving(op, values), _rank(op, values)
    most = max((len(one) for one in tensors_in(tuple(moving.values())) if one.dim() == rank > 0), default=0)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        is_moved = tensor.dim() > 0 and len(tensor) == most if rows else tensor.dim() == rank
        return view(tensor) if is_moved else tensor

    found = with_tensors(tuple(moving.values()), moved)
    return tuple({**dict(zip(op.parsed.names, values, strict=True)), **dict(zip(moving, found, strict=True))}.values())


def is_same(op: Op, found: _Results | None, call: tuple[Any, ...], reduced: int = -1) -> bool:
    """Whether the op makes ``found`` of a call: one that does not look at ranks may make no sense of others.

    ``reduced``: the dimension of the call's results that is the last of those found.
    """
    made = None if found is None else reference_if_taken(op, call)
    if found is None or made is None:
        return False
    try:
        pairs = list(zip(found, made, strict=True))
        moved = [(one, other if reduced == -1 else other.movedim(reduced, -1)) for one, other in pairs]
        return all(torch.allclose(_wide(one), _wide(other).reshape(one.shape), **_ALIKE) for one, other in moved)
    except (ValueError, RuntimeError, IndexError):  # their results have other numbers, shapes or ranks
        return False


def _wide(result: torch.Tensor) -> torch.Tensor:
    return result if result.is_complex() else result.double()


def _has_same_shapes(op: Op, found: _Results | None, call: tuple[Any, ...]) -> bool:
    """Whether a call's results have the shapes of those found: a problem may tell nothing of what was exchanged."""
    made = None if found is None else reference_if_taken(op, call)
    if found is None or made is None:
        return False
    return [one.shape for one in found] == [one.shape for one in made]


def _makes(op: Op, values: tuple[Any, ...]) -> bool:
    """Whether a call has any output: one that needs the gradient of an absent bias alone has none."""
    specs = op.output_specs(op.arguments(values), torch.device("cpu")).values()
    return any(spec.nbytes for spec in specs)

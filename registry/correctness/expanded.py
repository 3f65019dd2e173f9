"""Inputs that are expanded: several elements lie at one address, as in what ``torch.Tensor.expand`` returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, Literal, get_args

import torch

from ..arguments.expansion import expanded_dims
from ..arguments.schema import Parameter, tensors_in, with_tensors
from ..contract import Op
from .bounds import Bounds
from .magnitudes import finite, magnitude
from .numerics import reference64

ExpandedLayout = Literal["expanded-dense", "dense-expanded", "scalar-dense"]
"""expanded-dense and dense-expanded, of the tensors that may be expanded: every other one, from the first or from the
second on, is expanded along one dimension before its last, another one in each tensor; the rest are row-major.
scalar-dense: the first is one element, expanded along each of its dimensions, as gradients of a sum are."""

EXPANDED: frozenset[str] = frozenset(get_args(ExpandedLayout))

_PART = 1 / 64
"""The part of the largest result that results on expanded inputs may be off by, beyond the tolerance on dense ones."""

_EXPANDED_FROM = {"expanded-dense": 0, "dense-expanded": 1}


def expanded_inputs(op: Op, values: tuple[Any, ...], layout: str) -> tuple[Any, ...]:
    """A call's values with the tensors that the layout expands, which repeat their first elements then.

    Tensors that the op mutates stay as they are, and integers that it does not call independent: expanded offsets or
    slots make no sense. All stay as they are for a layout that expands nothing.
    """
    if layout not in EXPANDED:
        return values
    place = count()

    def expanded(parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor:
        dims = _along(tensor, layout) if _may(op, parameter, tensor) else []
        return _expanded(tensor, layout, dims, next(place)) if dims else tensor

    return tuple(
        with_tensors((value,), partial(expanded, parameter))[0]
        for parameter, value in zip(op.parsed.parameters, values, strict=True)
    )


def is_any_expanded(values: tuple[Any, ...]) -> bool:
    """Whether a tensor of a call's values is expanded."""
    return any(map(expanded_dims, tensors_in(values)))


def reference_of_expanded(op: Op, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...] | None:
    """The float64 reference of expanded inputs; None if the op makes no sense of them: it fails or is not finite."""
    try:
        reference = reference64(op, values)
    except Exception:  # an op may raise anything for inputs that contradict each other
        return None
    floating = (result for result in reference if result.is_floating_point())
    return reference if math.isfinite(magnitude(floating)) else None


def loose_bounds(reference: Sequence[torch.Tensor], dense: Sequence[Bounds]) -> tuple[Bounds, ...]:
    """Bounds of results on expanded inputs, given those on the inputs before they were expanded.

    Tolerances are those of sums whose terms differ: rounding errors of equal terms add up, and where these cancel, they
    are all that is left. Whoever reads other elements errs by far more than a part of the largest result.
    """
    return tuple(map(_loose, reference, dense))


def _loose(reference: torch.Tensor, dense: Bounds) -> Bounds:
    if dense.are_exact:
        only = reference.to(dense.low.dtype, copy=True)
        return Bounds(only, only, has_nan=False)
    by = _most(dense.high - dense.low) + _PART * max(_most(dense.high), _most(reference))
    low, high = ((reference + side * by).to(dense.low.dtype) for side in (-1.0, 1.0))
    return Bounds(low, high, has_nan=False)


def _most(tensor: torch.Tensor) -> float:
    """The magnitude of the finite elements."""
    found = magnitude([tensor])
    return found if math.isfinite(found) else magnitude([finite(tensor)])


def _may(op: Op, parameter: Parameter, tensor: torch.Tensor) -> bool:
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return not parameter.mutated and (is_number or parameter.name in op.independent)


def _along(tensor: torch.Tensor, layout: str) -> list[int]:
    """The dimensions along which the layout may expand a tensor."""
    last = tensor.dim() - (layout in _EXPANDED_FROM)
    return [dim for dim in range(last) if tensor.shape[dim] > 1]


def _expanded(tensor: torch.Tensor, layout: str, dims: list[int], place: int) -> torch.Tensor:
    """``place``: the tensor's index among those that the layout may expand."""
    if layout in _EXPANDED_FROM:
        number, is_other = divmod(place - _EXPANDED_FROM[layout], 2)
        dims = [] if is_other else [dims[number % len(dims)]]
    elif place > 0:
        dims = []
    once = tensor
    for dim in dims:
        once = once.narrow(dim, 0, 1)
    return once.expand(tensor.shape)

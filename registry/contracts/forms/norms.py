"""A missing weight, an offset of it, several normalised dimensions and torch's ``eps=None`` of the norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...contract import CanonicalCall
from ...tracing import refuse
from ..checks import WIDE, shape_text

_MORE = ("normalized_shape", "offset")


def default_eps(dtype: torch.dtype) -> float:
    """Torch's epsilon for an rms_norm without one: the distance of 1 from the next number, for halves in float32."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


def rms_norm_forms(given: dict[str, Any]) -> CanonicalCall | None:
    """rms_norm without a weight, with ``offset`` (``x / rms * (offset + weight)``), or over several dimensions.

    The normalised dimensions are the weight's, or ``normalized_shape``, as in torch. ``offset`` is 1 for Gemma's
    weights; the sum is in float32. ``eps=None`` is torch's default, ``default_eps``. A weight of another, narrower
    dtype than x is converted to that of the computation, which changes no value.
    """
    weight, asked = _as_computed(given), any(name in given for name in _MORE)
    one = isinstance(weight, torch.Tensor) and weight.dim() < 2 and weight is given["weight"]
    if one and not asked and given.get("eps", 0.0) is not None:
        return None
    if not isinstance(given.get("x"), torch.Tensor) or not isinstance(weight, torch.Tensor | None):
        return _known_alone(given)
    x: torch.Tensor = given["x"]
    shape, offset = _normalised_shape("rms_norm", given, "weight"), _offset(given, weight)
    if given.get("eps", 0.0) is None:
        # of other dtypes any number will do: the op refuses them
        given["eps"] = default_eps(x.dtype) if x.is_floating_point() else 0.0
    if weight is None:
        given["weight"] = x.new_ones(math.prod(shape))
    else:
        weight = weight.flatten() if weight.dim() else weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        given["weight"] = weight.to(wide) + offset if offset else weight
    return _in_rows(given, shape)


def _as_computed(given: dict[str, Any]) -> Any:
    """The weight of a call, converted if it is narrower than the computation and neither that nor x has its dtype."""
    x, weight = given.get("x"), given.get("weight")
    if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor):
        return weight
    if x.dtype == weight.dtype or x.dtype not in WIDE or weight.dtype not in WIDE:
        return weight
    wide = torch.promote_types(x.dtype, torch.float32)
    # torch.compile takes what has been converted to its own dtype for another tensor
    is_wide = weight.dtype == wide or torch.promote_types(wide, weight.dtype) != wide
    return weight if is_wide else weight.to(wide)


def layer_norm_forms(given: dict[str, Any]) -> CanonicalCall | None:
    """layer_norm over several dimensions: those of the weight, or ``normalized_shape``, as in torch."""
    learnt = [given.get(name) for name in ("weight", "bias")]
    several = isinstance(learnt[0], torch.Tensor) and learnt[0].dim() > 1
    if (not several and "normalized_shape" not in given) or not isinstance(given.get("x"), torch.Tensor):
        return _known_alone(given)
    shape = _normalised_shape("layer_norm", given, "weight", "bias")
    for name, one in zip(("weight", "bias"), learnt, strict=True):
        if isinstance(one, torch.Tensor):
            given[name] = one.flatten() if one.dim() else one
    return _in_rows(given, shape)


def _known_alone(given: dict[str, Any]) -> CanonicalCall | None:
    """The call without what the schema does not know, if it has that: another of its arguments is wrong."""
    known = {name: value for name, value in given.items() if name not in _MORE}
    return CanonicalCall(known) if len(known) < len(given) else None


def _normalised_shape(op: str, given: dict[str, Any], *learnt: str) -> tuple[int, ...]:
    """The sizes of the normalised dimensions, the last one's alone where nothing tells them."""
    x, wanted = given["x"], given.pop("normalized_shape", None)
    shapes = {name: tuple(given[name].shape) for name in learnt if isinstance(given.get(name), torch.Tensor)}
    if wanted is not None:
        shapes = {"normalized_shape": _sizes(op, wanted), **shapes}
    shapes = shapes or {"x": tuple(x.shape[-1:])}
    first, shape = next(iter(shapes.items()))
    for name, other in shapes.items():
        if other != shape:
            refuse(f"{op}: {first} is {shape_text(shape)} but {name} is {shape_text(other)}", hint="expected one shape")
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        refuse(
            f"{op}: {first} has shape {shape_text(shape)} but x has shape {shape_text(x.shape)}",
            hint="expected the sizes of the last dimension of x, or of several, which are then normalised together",
        )
    return shape


def _sizes(op: str, wanted: Any) -> tuple[int, ...]:
    sizes = (wanted,) if isinstance(wanted, int) else wanted
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not all(isinstance(size, int) for size in sizes):
        refuse(
            f"{op}: normalized_shape={wanted!r:.80}",
            hint="expected sizes of the last dimensions of x, e.g. (4096,)",
        )
    return tuple(sizes)


def _offset(given: dict[str, Any], weight: Any) -> float:
    offset = given.pop("offset", 0.0)
    right = isinstance(offset, int | float) and not isinstance(offset, bool) and math.isfinite(offset)
    if not right or (offset and weight is None):
        refuse(
            f"rms_norm: offset={offset!r:.80}" + (" without a weight that it is added to" if right else ""),
            hint="expected a finite number, e.g. 1.0 for Gemma's weights, and 0.0 where there is no weight",
        )
    return float(offset)


def _in_rows(given: dict[str, Any], shape: tuple[int, ...]) -> CanonicalCall:
    """The call with the normalised dimensions as one, whose result has x's shape."""
    x = given["x"]
    if len(shape) == 1:
        return CanonicalCall(given)
    given["x"] = x.reshape(*x.shape[: x.dim() - len(shape)], math.prod(shape))
    return CanonicalCall(given, lambda y: y.view(x.shape))

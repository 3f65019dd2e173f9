"""Magnitudes of tensors and dtypes, and conversions of float8 tensors to a dtype that torch calculates in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch


def largest(values: Sequence[torch.Tensor]) -> float:
    """The largest of scalar tensors, NaN if one is, 0.0 if there are none; read in one step, which waits once."""
    return _largest_of(_read(values))


def magnitude(tensors: Iterable[torch.Tensor]) -> float:
    """The largest absolute value, in one pass; NaN or infinite if an element is, or if a tensor is not floating.

    If it is at most ``largest_finite``, NaN and infinity need no further treatment.
    """
    found: list[torch.Tensor] = []
    for tensor in tensors:
        if not tensor.is_floating_point():
            return math.inf
        if tensor.numel():
            found += torch.aminmax(tensor)
    return _largest_of(list(map(abs, _read(found))))


def _read(values: Sequence[torch.Tensor]) -> list[float]:
    """Scalar tensors as numbers: the host takes less time to compare these than to have a device do it."""
    if len(values) == 1:
        return [float(values[0])]
    return [float(value) for value in torch.stack(list(values)).tolist()] if values else []


def _largest_of(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def largest_finite(dtype: torch.dtype) -> float:
    """The largest finite number of a floating dtype; -1 for any other dtype."""
    return torch.finfo(dtype).max if dtype.is_floating_point else -1.0


def is_float8(dtype: torch.dtype) -> bool:
    """True if a dtype is floating and has one byte: torch stores and converts such numbers, but hardly calculates."""
    return dtype.is_floating_point and dtype.itemsize == 1


def calculable(tensor: torch.Tensor) -> torch.Tensor:
    """A float8 tensor in float32, which torch calculates in; any other tensor itself."""
    return tensor.float() if is_float8(tensor.dtype) else tensor


def finite(reference: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor with 0 in place of NaN and infinity."""
    return reference.masked_fill(~reference.isfinite(), 0.0)


def in_range(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor, clamped to the finite range of ``dtype`` if that is float8, whose conversion may saturate."""
    return reference.clamp(-largest_finite(dtype), largest_finite(dtype)) if is_float8(dtype) else reference

"""Magnitudes of tensors and dtypes, and conversions of float8 tensors to a dtype that torch calculates in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch


def largest(values: Sequence[torch.Tensor]) -> float:
    """The largest of scalar tensors, 0.0 if there are none; read in one step, since each read waits for the device."""
    return float(torch.stack(list(values)).max()) if values else 0.0


def magnitude(tensors: Iterable[torch.Tensor]) -> float:
    """The largest absolute value, in one pass; NaN or infinite if an element is, or if a tensor is not floating.

    If it is at most ``largest_finite``, NaN and infinity need no further treatment.
    """
    found = []
    for tensor in tensors:
        if not tensor.is_floating_point():
            return math.inf
        if tensor.numel():
            found.append(torch.stack(torch.aminmax(tensor)).abs().max())
    return largest(found)


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

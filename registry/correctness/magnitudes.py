"""Magnitudes of tensors: the largest of one, what a dtype can hold, and numbers in a dtype that torch calculates in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch


def largest(values: Sequence[torch.Tensor]) -> float:
    """Read together: each reading waits for the device."""
    return float(torch.stack(list(values)).max()) if values else 0.0


def magnitude(tensors: Iterable[torch.Tensor]) -> float:
    """The largest absolute value, in one pass; NaN or infinite where an element is, or where one is not floating.

    What it shows to be within ``largest_finite`` needs none of the care that NaN and infinity do.
    """
    found = []
    for tensor in tensors:
        if not tensor.is_floating_point():
            return math.inf
        if tensor.numel():
            found.append(torch.stack(torch.aminmax(tensor)).abs().max())
    return largest(found)


def largest_finite(dtype: torch.dtype) -> float:
    """Of a floating dtype; -1 for others, which hold no such numbers."""
    return torch.finfo(dtype).max if dtype.is_floating_point else -1.0


def is_float8(dtype: torch.dtype) -> bool:
    """Whether it is one of the floating dtypes of one byte, which torch stores and converts, and little else."""
    return dtype.is_floating_point and dtype.itemsize == 1


def calculable(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype that torch calculates in: float32 for float8, the tensor itself for others."""
    return tensor.float() if is_float8(tensor.dtype) else tensor


def finite(reference: torch.Tensor) -> torch.Tensor:
    """Zero where it is NaN or infinite."""
    return reference.masked_fill(~reference.isfinite(), 0.0)


def in_range(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of float8 no number beyond the largest, which torch may round it to, not to infinity; others as they are."""
    return reference.clamp(-largest_finite(dtype), largest_finite(dtype)) if is_float8(dtype) else reference

"""Tensors as integers: comparing them compares bits, and whole words move faster than the elements in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

WORD = 8
"""Bytes of the integers that memory is moved and compared in."""

_APART = 61
"""Elements from one that ``disturb`` changes to the next."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as integers of an element's size."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.detach().view(_INTEGERS[tensor.dtype.itemsize])


def as_words(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's memory as one row of words; None where it is not contiguous or not made of whole words."""
    offset = tensor.storage_offset() * tensor.itemsize
    if tensor.is_complex() or not tensor.is_contiguous() or (tensor.nbytes | offset | tensor.data_ptr()) % WORD:
        return None
    return tensor.detach().view(-1).view(torch.int64)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors are equal bit by bit: NaN equals itself, zero differs from minus zero."""
    return bool(having_same_bits(one, other))


def all_same(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """True if each tensor has the same bits as the other in its place."""
    return all(same_bits(one, other) for one, other in zip(ones, others, strict=True))


def having_same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``same_bits`` as a boolean tensor on the device, so that the caller need not wait for it."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return torch.zeros((), dtype=torch.bool, device=other.device)
    left, right = as_words(one), as_words(other)
    if left is None or right is None:
        left, right = as_bits(one), as_bits(other)
    return (left == right).all()


def disturb(rows: torch.Tensor, start: int) -> None:
    """Change a few elements of every row, along the last dimension, into other finite numbers of similar size.

    Every 61st from a place on that follows from ``start``, any number from 0; never the first element, unless it is the
    only one. The tensor's version counter does not move.
    """
    count = rows.shape[-1]
    if not rows.numel():
        return
    first = 1 + start % max(min(_APART, count) - 1, 1)
    _change(rows.data[..., min(first, count - 1) :: _APART])


def change_all(tensor: torch.Tensor) -> None:
    """Change every element into another finite number of similar size. The tensor's version counter does not move."""
    _change(tensor.data)


def _change(some: torch.Tensor) -> None:
    if some.dtype == torch.bool:
        some.logical_not_()
    elif some.is_floating_point() or some.is_complex():
        some.copy_(_others(some))
    else:
        as_bits(some).add_(1)


def _others(numbers: torch.Tensor) -> torch.Tensor:
    # torch computes nothing with floats of one byte
    wide = numbers.float() if numbers.itemsize == 1 else numbers
    other = torch.where(wide.abs() > 0.5, wide / 2, wide + 1)
    return torch.where(other.isfinite(), other, torch.ones_like(other))

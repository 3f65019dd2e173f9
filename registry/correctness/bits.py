"""Tensors viewed as integers, to compare bits, and as 8-byte words, which are faster than small elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

WORD = 8
"""Bytes of a word: memory is copied and compared word by word."""

_APART = 61
"""The distance, in elements, between two elements that ``disturb`` changes."""

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
    """True if each tensor of ``ones`` is equal bit by bit to the tensor of ``others`` at its index."""
    return all(same_bits(one, other) for one, other in zip(ones, others, strict=True))


def having_same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``same_bits`` as a boolean tensor on the device, which does not wait for the device."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return torch.zeros((), dtype=torch.bool, device=other.device)
    left, right = as_words(one), as_words(other)
    if left is None or right is None:
        left, right = as_bits(one), as_bits(other)
    return (left == right).all()


def disturb(rows: torch.Tensor, start: int) -> None:
    """Change a few elements of every row, along the last dimension, into other finite numbers of similar size.

    It changes every 61st element, from a place that depends on ``start`` (0 or more); the first element only if there
    is no other. The tensor's version counter does not move.
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
    # torch cannot compute with floats of one byte
    wide = numbers.float() if numbers.itemsize == 1 else numbers
    other = torch.where(wide.abs() > 0.5, wide / 2, wide + 1)
    return torch.where(other.isfinite(), other, torch.ones_like(other))

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
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    return _detached(tensor).view(_INTEGERS[tensor.dtype.itemsize])


def as_words(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's memory as one row of words; None where it is not contiguous or not made of whole words."""
    if not _is_made_of_words(tensor):
        return None
    row = tensor if tensor.dim() == 1 else tensor.view(-1)
    return _detached(row).view(torch.int64)


def _is_made_of_words(tensor: torch.Tensor) -> bool:
    offset = tensor.storage_offset() * tensor.itemsize
    whole = not (tensor.nbytes | offset | tensor.data_ptr()) % WORD
    return whole and tensor.is_contiguous() and not tensor.dtype.is_complex


def _has_rows_of_words(tensor: torch.Tensor) -> bool:
    """True if the tensor, which is contiguous, can be viewed as words in its own shape: one operation less."""
    if not tensor.dim():
        return False
    # a dimension of size one may have any stride
    steps = (tensor.shape[-1], *tensor.stride()[:-1])
    return not any(step * tensor.itemsize % WORD for step in steps)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    # one operation less for nearly all tensors: dozens are compared for each candidate
    return tensor.detach() if tensor.requires_grad else tensor


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
    if _is_made_of_words(one) and _is_made_of_words(other):
        by_row = _has_rows_of_words(one) and _has_rows_of_words(other)
        left, right = (_detached(each if by_row else each.view(-1)).view(torch.int64) for each in (one, other))
    else:
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

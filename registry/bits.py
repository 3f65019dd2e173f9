"""Tensors as integers: comparing them compares bits, and whole words move faster than the elements in them."""

from __future__ import annotations

import torch

WORD = 8
"""Bytes of the integers that memory is moved and compared in."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of an element's size."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.detach().view(_INTEGERS[tensor.dtype.itemsize])


def as_words(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same memory as one row of words; None where it is not contiguous, or not made of whole words."""
    offset = tensor.storage_offset() * tensor.itemsize
    if tensor.is_complex() or not tensor.is_contiguous() or (tensor.nbytes | offset | tensor.data_ptr()) % WORD:
        return None
    return tensor.detach().view(-1).view(torch.int64)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal bit by bit: NaN equals itself, zero differs from minus zero."""
    return bool(having_same_bits(one, other))


def having_same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The same as a tensor on the device, for whom it should not wait."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return torch.zeros((), dtype=torch.bool, device=other.device)
    left, right = as_words(one), as_words(other)
    if left is None or right is None:
        left, right = as_bits(one), as_bits(other)
    return (left == right).all()

"""Tensors inside larger, poisoned ones: what is read or written beside them shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from .numerics import poison
from .problem import TensorSpec

Layout = Literal["contiguous", "unaligned", "strided"]
LAYOUTS: tuple[Layout, ...] = ("contiguous", "unaligned", "strided")
"""Row-major at a multiple of 16 bytes; row-major one element further; with an element between any two."""

MARGIN = 64
"""Elements before and after: a multiple of 16 bytes for every dtype, and more than a vector load."""


@dataclass(frozen=True)
class Surrounded:
    """``tensor`` is a view into ``base``; what else is in ``base`` was poisoned."""

    tensor: torch.Tensor
    base: torch.Tensor

    def untouched(self) -> bool:
        """Whether nothing but the tensor's own elements was written."""
        inside = torch.zeros(self.base.shape, dtype=torch.bool, device=self.base.device)
        _view(inside, self.tensor.shape, self.tensor.stride(), int(self.tensor.storage_offset())).fill_(True)
        rest = self.base[~inside]
        if rest.is_floating_point():
            return bool(rest.isnan().all())
        fresh = torch.empty_like(rest)
        poison((fresh,))
        return torch.equal(rest, fresh)


def surrounded(spec: TensorSpec, offset: int = MARGIN) -> Surrounded:
    """A poisoned tensor of that shape, dtype and strides, ``offset`` elements into a poisoned allocation."""
    span = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)) + 1
    base = torch.empty(max(span, 0) + 2 * MARGIN, dtype=spec.dtype, device=spec.device)
    poison((base,))
    return Surrounded(_view(base, spec.shape, spec.strides, offset), base)


def laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A copy of a tensor in that layout, in poisoned surroundings."""
    return laid_out_within(tensor, layout).tensor


def laid_out_within(tensor: torch.Tensor, layout: Layout) -> Surrounded:
    """The same with its surroundings."""
    gap = 2 if layout == "strided" else 1
    spec = TensorSpec(tuple(tensor.shape), tensor.dtype, tuple(_strides(tensor.shape, gap)), tensor.device)
    copy = surrounded(spec, MARGIN + 1 if layout == "unaligned" else MARGIN)
    copy.tensor.copy_(tensor)
    return copy


def _strides(shape: torch.Size, step: int) -> Iterator[int]:
    for dim in range(len(shape)):
        yield step * math.prod(max(size, 1) for size in shape[dim + 1 :])


def _view(base: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    return base.as_strided(shape, strides, offset)

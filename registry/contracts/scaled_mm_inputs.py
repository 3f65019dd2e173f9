"""Random operands and scales of scaled_mm; neighbouring scales always differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..problem import Problem
from . import fills

KINDS = ("normal", "outliers", "spike_last", "blocks", "constant")
BLOCK = 128
"""The number of elements along k, and of rows of b, that share a block's scale."""

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
_USUAL = 32.0
"""Standard deviation of the levels."""


def scale_shapes(kind: str, rows: Sequence[int], n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of scale_a and scale_b; a is ``[*rows, k]``, b ``[n, k]``."""
    if kind == "tensor":
        return (1,), (1,)
    if kind == "row":
        return (*rows, 1), (n, 1)
    blocks = -(-k // BLOCK)
    return (*rows, blocks), (-(-n // BLOCK), blocks)


def scaled_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """a, b, their scales, a bias or None, and the name of the output's dtype; outputs are about as large as the bias.

    Outliers and the last column of k have the greatest level; each 128 of k are 4 or 16 times as large as the next.
    """
    n, k, dtype = problem.n, problem.k, problem.torch_dtype
    drawn = torch.randn((problem.m, k), device=generator.device, generator=generator).mul_(_USUAL)
    weight = torch.randn((n, k), device=generator.device, generator=generator).mul_(_USUAL)
    if kind == "constant":
        drawn.fill_(_USUAL - 1)
        weight.abs_()
    elif kind == "outliers":
        fills.plant_outliers(drawn, _LARGEST[dtype], generator)
    elif kind == "spike_last":
        drawn.mul_(1 / 16)[:, -1:] = _LARGEST[dtype]
    elif kind == "blocks":
        drawn *= 4.0 ** (torch.arange(k, device=drawn.device) // BLOCK % 3) / 16
        if dtype.is_floating_point:
            fills.plant_in_rows(drawn, (torch.nan,), generator)
    shape_a, shape_b = scale_shapes(problem.scales, (problem.m,), n, k)
    scale_a = _scales(shape_a, generator)
    scale_b = _scales(shape_b, generator).mul_(1 / (_USUAL**2 * math.sqrt(k)))
    out_dtype = getattr(torch, problem.out_dtype)
    bias = fills.normal((n,), out_dtype, generator) if problem.bias else None
    return _levels(drawn, dtype), _levels(weight, dtype), scale_a, scale_b, bias, problem.out_dtype


def _levels(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    clamped = x.clamp_(-_LARGEST[dtype], _LARGEST[dtype])
    return (clamped if dtype.is_floating_point else clamped.round_()).to(dtype)


def _scales(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Scales 1, 3 and 9 in turn along every dimension, each up to 10 % larger at random."""
    drawn = torch.rand(shape, device=generator.device, generator=generator).mul_(0.1).add_(1)
    place = sum(
        torch.arange(size, device=generator.device).view(-1, *[1] * (len(shape) - 1 - dim))
        for dim, size in enumerate(shape)
    )
    return drawn.mul_(3.0 ** (place % 3))

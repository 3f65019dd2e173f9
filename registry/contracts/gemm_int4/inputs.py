"""Inputs of gemm_int4 and its gradient: activations of several kinds, and weights whose groups always differ."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...packed import LAYOUT, words
from ...problem import Problem
from .. import fills
from ..packed_gemm_inputs import activations
from .formats import check

KINDS = ("normal", "outliers", "spike_last", "constant", "groups")


def inputs(problem: Problem, kind: str, generator: torch.Generator, *, backward: bool = False) -> tuple[Any, ...]:
    """Arguments of one kind in the schema's order; ``backward``: of the gradient, which sums over N."""
    check(problem)
    summed = problem.n if backward else problem.k
    a = activations((problem.m, summed), problem.torch_dtype, kind, generator)
    qweight = _words(problem, kind, generator)
    scales, zeros = _groups(problem, kind, generator, summed)
    if kind == "groups":
        # makes its whole row NaN. No infinity: it is one or NaN by whether a weight is rounded to zero
        fills.plant_in_rows(a, (torch.nan,), generator)
    given = None if problem.symmetric else zeros
    return a, qweight, scales, given, problem.bits, problem.group_size, problem.k, LAYOUT


def _words(problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor:
    shape, device = (words(problem.k, problem.bits), problem.n), generator.device
    if kind == "constant":
        # eleven in each nibble: neither zero point is 11, so that the product is not 0
        return torch.full(shape, 0xBBBBBBBB - 2**32, dtype=torch.int32, device=device)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device, generator=generator)


def _groups(problem: Problem, kind: str, generator: torch.Generator, summed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales for outputs of about 1, and zero points. Neighbouring groups and columns always differ."""
    shape, dtype = (problem.k // problem.group_size, problem.n), problem.torch_dtype
    device = generator.device
    unit = 1 / (4.6 * math.sqrt(summed))
    if kind == "constant":
        return fills.constant(shape, dtype, generator, unit), fills.constant(shape, dtype, generator, 7.0)
    scales = torch.rand(shape, dtype=dtype, device=device, generator=generator).add_(0.5).mul_(unit)
    low, high = (0, 16) if kind == "groups" else (6, 11)
    zeros = torch.randint(low, high, shape, dtype=torch.int32, device=device, generator=generator).to(dtype)
    if kind == "groups":
        # factors 1, 4, 16 in turn along K: a neighbour's scale is wrong by at least a factor of 4
        scales *= 4.0 ** (torch.arange(shape[0], device=device) % 3).unsqueeze(1).to(dtype)
    return scales, zeros

"""linear: activations times a weight, and a bias, in one dtype.

float32 is multiplied in float32: never in TF32 unless the process has asked torch for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..contract import Backward, RowMajor, Tolerance
from ..problem import Problem
from . import fills
from .families import gemm_op
from .forms import linear_forms
from .rounding import fp32_weight, underflow, units

KINDS = ("normal", "outliers", "spike_last", "constant")


def linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias``, ``[..., k]`` and ``[n, k]`` to ``[..., n]``; halves in fp32, rounded once."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide = None if bias is None else bias.to(accumulator)
    y = torch.nn.functional.linear(x.to(accumulator), weight.to(accumulator), wide)
    return y.to(x.dtype).contiguous()


def drawn(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """x, weight and bias; outputs are about as large as activations, so that an error in the bias shows."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.torch_dtype
    weight = fills.normal((n, k), dtype, generator).mul_(k**-0.5)
    bias = fills.normal((n,), dtype, generator)
    if kind == "constant":
        return fills.constant((m, k), dtype, generator, 0.5), weight, bias
    x = fills.normal((m, k), dtype, generator)
    if kind == "outliers":
        fills.plant_outliers(x, 60.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together
        x[:, -1:] = 8.0 * math.sqrt(k)
    return x, weight, bias


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weight, bias = drawn(problem, kind, generator)
    if kind == "spike_last":
        fills.plant_in_rows(x, (torch.nan,), generator)
    return x, weight, bias if problem.bias else None


def sum_scale(problem: Problem, reference: torch.Tensor, rms: torch.Tensor, terms: int) -> torch.Tensor:
    """Relative to each output and, since the ``terms`` terms of its sum may cancel, to the root mean square ``rms``.

    cuBLAS may add the parts of a split sum in half precision, which torch allows by default.
    """
    size = reference.abs()
    return size + 2 * rms + (size + rms) * fp32_weight(problem) * (8 + math.sqrt(terms))


def over_rows_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """The scale of a weight's gradient, relative to each output and to the root mean square of all.

    A row of it may be one sum that cancels.
    """
    return sum_scale(problem, reference, reference.square().mean().sqrt_(), problem.m)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    return sum_scale(problem, reference, reference.square().mean(-1, keepdim=True).sqrt_(), problem.k)


LINEAR = gemm_op(
    "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor y",
    linear_reference,
    fake=RowMajor(lambda x, weight, *_: [((*x.shape[:-1], weight.shape[0]), x.dtype)]),
    inputs=_inputs,
    tolerance=Tolerance(units(float32=2.0, half=1.5), underflow(), _scale),
    kinds=KINDS,
    forms=linear_forms,
    backward=Backward(op="linear_backward", saved=("x", "weight", "bias")),
    weights=frozenset({"weight", "bias"}),
)

"""rms_norm over the last dimension.

It takes float32, float16, bfloat16 and float64, and a float32 weight with a half x. ``forms`` converts a narrower
weight of another dtype. A float8 result needs a scale, which the schema does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..contract import Backward, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, Value, dtype_name
from . import fills
from .checks import AS_FIRST, HALVES, check_eps, float_tensor, same_dtype, shape_text
from .families import rows_op
from .forms import rms_norm_forms
from .rounding import fp32_weight, underflow, units

KINDS = ("normal", "outliers", "spike_last", "constant", "near_zero")


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x * x) + eps) * weight`` (Zhang and Sennrich, 2019); halves in fp32, rounded once.

    The result has the dtype of x, as in torch, also for a half x with a float32 weight.
    """
    check_eps("rms_norm", eps)
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(accumulator)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse * weight.to(accumulator)).to(x.dtype).contiguous()


def norm_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``x`` and ``weight``, forward and backward."""
    check_eps(arguments.op, arguments.number("eps"))
    x, weight = float_tensor(arguments, "x"), arguments.tensor("weight")
    if not x.shape:
        raise InvalidArgumentError(f"{arguments.op}: x has no dimension to normalise", hint="expected [..., cols]")
    cols = x.shape[-1]
    if weight.shape != (cols,):
        raise InvalidArgumentError(
            f"{arguments.op}: weight has shape {shape_text(weight.shape)} but x has {cols} columns"
            f" (shape {shape_text(x.shape)})",
            hint=f"expected a weight of shape {cols}",
        )
    if weight.dtype != torch.float32 or x.dtype not in HALVES:
        same_dtype(arguments.op, ("x", x), ("weight", weight))
    return {"rows": math.prod(x.shape[:-1]), "cols": cols, "dtype": dtype_name(x.dtype)}


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    if kind == "constant":
        weight = fills.constant(shape[1:], dtype, generator, 0.75)
        return fills.constant(shape, dtype, generator, 3.0), weight, 1e-6
    x = fills.normal(shape, dtype, generator)
    weight = fills.normal(shape[1:], dtype, generator).mul_(0.25).add_(1.0)
    if kind == "outliers":
        # 300 * 300 overflows a float16 accumulator
        fills.plant_outliers(x, 300.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together
        x[:, -1:] = 8.0 * math.sqrt(problem.cols)
    elif kind == "near_zero":
        # mean(x * x) is about 1e-6, so that eps decides; and not the default eps
        x.mul_(2.0**-10)
        # makes its whole row NaN. No infinity: the rest of its row is 0, but NaN in torch's CUDA kernel for columns not
        # a multiple of 4 (2.9 and newer), which adds a variance and a squared mean
        return fills.plant_in_rows(x, (torch.nan,), generator), weight, 1e-5
    return x, weight, 1e-6


def rms_norm_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output: 8 roundings and those of the sum, as for softmax."""
    return reference.abs() * (1 + fp32_weight(problem) * (8 + math.sqrt(problem.cols)))


RMS_NORM = rows_op(
    "rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor y",
    rms_norm_reference,
    fake=AS_FIRST,
    problem=norm_problem,
    inputs=_inputs,
    # two roundings to half: many models' own code rounds x / rms before it multiplies by the weight
    tolerance=Tolerance(rtol=units(float32=2.0, half=2.1), atol=underflow(4), scale=rms_norm_scale),
    kinds=KINDS,
    numbers=frozenset({"eps"}),
    alike={"weight": "x"},
    forms=rms_norm_forms,
    backward=Backward(op="rms_norm_backward", saved=("x", "weight")),
    weights=frozenset({"weight"}),
)

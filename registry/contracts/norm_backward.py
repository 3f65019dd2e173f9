"""The gradients of rms_norm by its input and by its weight."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..contract import RowMajor, Tolerance
from ..problem import Problem
from . import fills
from .checks import check_eps
from .families import after_gradient, rows_op
from .norm import RMS_NORM, norm_problem
from .rounding import fp32_weight, underflow, units

KINDS = ("normal", "along", "outliers", "spike_last", "constant", "near_zero")

_SHORT = 16


def rms_norm_backward_reference(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    need_x: bool = True,
    need_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """With ``u = x / sqrt(mean(x * x) + eps)`` and ``g = grad_y * weight`` (Zhang and Sennrich, 2019):
    ``(g - u * mean(g * u)) / sqrt(mean(x * x) + eps)``, and ``sum(grad_y * u)`` over rows; halves in fp32.

    A gradient that is not needed is an empty tensor.
    """
    check_eps("rms_norm_backward", eps)
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide, gradient = x.to(accumulator), grad_y.to(accumulator)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    unit = wide * inverse
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if need_x:
        weighted = gradient * weight.to(accumulator)
        grad_x = (weighted - unit * (weighted * unit).mean(-1, keepdim=True)) * inverse
    if need_weight:
        grad_weight = (gradient * unit).reshape(-1, x.shape[-1]).sum(0)
    return grad_x.to(x.dtype).contiguous(), grad_weight.to(weight.dtype)


def _outputs(
    _: Any, x: Any, weight: Any, __: Any, need_x: bool = True, need_weight: bool = True
) -> list[tuple[Any, torch.dtype]]:
    return [(x.shape if need_x else (0,), x.dtype), (weight.shape if need_weight else (0,), weight.dtype)]


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    grad_y = fills.normal(shape, dtype, generator)
    if kind == "constant":
        weight = fills.constant(shape[1:], dtype, generator, 0.75)
        return grad_y, fills.constant(shape, dtype, generator, 3.0), weight, 1e-6, True, True
    x = fills.normal(shape, dtype, generator)
    weight = fills.normal(shape[1:], dtype, generator).mul_(0.25).add_(1.0)
    if problem.cols < _SHORT:
        # away from 0, or a row's inverse norm would be as large as chance has it
        x += torch.where(x < 0, -0.5, 0.5).to(dtype)
    if kind == "along":
        # the subtracted mean dominates: with gradients of other directions a wrong mean would not show
        grad_y += 4.0 * x
    elif kind == "outliers":
        # 300 * 300 overflows a float16 accumulator
        fills.plant_outliers(x, 300.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together; gradients of one sign, so that rows do not cancel
        x[:, -1:] = 8.0 * math.sqrt(problem.cols)
        grad_y[:, -1:].abs_().add_(0.5)
    elif kind == "near_zero":
        # mean(x * x) is about 1e-6, so that eps decides; and not the default eps
        x.mul_(2.0**-10)
        # in the gradient: its row of grad_x and its column of grad_weight are NaN, where one in x would make all of
        # grad_weight so. No infinity: it is one or NaN by whether the products with it are rounded to zero
        return fills.plant_in_rows(grad_y, (torch.nan,), generator), x, weight, 1e-5, True, True
    return grad_y, x, weight, 1e-6, True, True


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output, and to the root mean square of its row or of all the weight's gradients."""
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    return reference.abs() + (_of_weight if reference.dim() == 1 else _of_input)(problem, rms)


def _of_input(problem: Problem, rms: torch.Tensor) -> torch.Tensor:
    """The error of the subtracted mean affects the whole row: up to ``sqrt(cols)`` roundings for a serial sum, 24 times
    that where the gradient is four times x plus noise. With few columns the difference may be little larger by chance.
    """
    chance = min(512.0, 4096.0 / problem.cols**2)
    common: torch.Tensor = rms * (64 + 24 * math.sqrt(problem.cols)) + chance
    return common * fp32_weight(problem)


def _of_weight(problem: Problem, rms: torch.Tensor) -> torch.Tensor:
    """For a sum over rows whose terms cancel. torch's CUDA kernel rounds the sums of blocks of rows to half precision.

    Its error is 1.2 roundings of the rms in the worst of a few hundred columns; that of a running sum in bfloat16 over
    31 rows in each of 132 programs is 5.
    """
    return rms * (1.5 + fp32_weight(problem) * (32 + math.sqrt(problem.rows) + math.sqrt(problem.cols)))


RMS_NORM_BACKWARD = rows_op(
    "rms_norm_backward(Tensor grad_y, Tensor x, Tensor weight, float eps=1e-6, bool need_x=True, "
    "bool need_weight=True) -> (Tensor grad_x, Tensor grad_weight)",
    rms_norm_backward_reference,
    rows=("grad_y", "x", "grad_x"),
    flop=10,
    fake=RowMajor(_outputs),
    problem=after_gradient("y", "x", norm_problem),
    inputs=_inputs,
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.1), atol=underflow(8), scale=_scale),
    kinds=KINDS,
    numbers=RMS_NORM.numbers,
    alike=RMS_NORM.alike,
    weights=RMS_NORM.weights,
)

"""The gradient of softmax over one dimension, from its output."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from ..contract import Tolerance
from ..problem import Problem
from . import fills
from .checks import AS_FIRST, check_dim
from .families import after_gradient, rows_op
from .rounding import fp32_weight, underflow, units
from .softmax import mask_front, rows_last, softmax_problem

KINDS = ("normal", "shifted", "outliers", "spike_last", "constant", "masked")

_PEAK = 4.0


def softmax_backward_reference(grad_y: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``y * (grad_y - sum(grad_y * y))`` along ``dim``; halves in fp32, rounded once. Row-major output."""
    check_dim("softmax_backward", dim, y.dim(), name="y")
    accumulator = torch.promote_types(y.dtype, torch.float32)
    gradient, wide = grad_y.to(accumulator), y.to(accumulator)
    total = (gradient * wide).sum(dim, keepdim=True)
    return (wide * (gradient - total)).to(y.dtype).contiguous()


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Inputs in which ``y`` is a softmax, and no gradient makes a whole row cancel, which no kernel could get right."""
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    x = fills.normal(shape, dtype, generator)
    grad_y = fills.normal(shape, dtype, generator)
    if kind == "constant":
        x.fill_(0.0)
    elif kind == "shifted":
        # the sum dominates every element: with random gradients of mean 0 a wrong sum would not show
        grad_y.add_(8.0)
        # makes its whole row NaN. No infinity: it is one or NaN by whether a tiny y is flushed to zero
        fills.plant_in_rows(grad_y, (torch.nan,), generator)
    elif kind == "outliers":
        fills.plant_outliers(grad_y, 64.0, generator)
    elif kind == "spike_last":
        # one element with half of the row's weight, and a gradient far from the others'
        x[:, -1:] = 0.5 + math.log(problem.cols)
        grad_y[:, -1:] = _PEAK
    elif kind == "masked":
        # y is 0 in the padding, and 1 if one element is left; if two are left, distant gradients do not cancel
        mask_front(x, generator)
        grad_y[:, ::2] += _PEAK
        grad_y[:, 1::2] -= _PEAK
    return grad_y, torch.softmax(x, -1), -1


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output, and in fp32 to the row's largest: the subtracted sum's error affects the whole row.

    In short rows gradients may be equal by chance, and the difference is then as small as the sum's own error.
    """
    largest = reference.abs().amax(-1, keepdim=True)
    chance = min(64.0, 512.0 / problem.cols)
    common: torch.Tensor = largest * (64 + math.sqrt(problem.cols)) + chance
    return reference.abs() + common * fp32_weight(problem)


SOFTMAX_BACKWARD = rows_op(
    "softmax_backward(Tensor grad_y, Tensor y, int dim=-1) -> Tensor grad_x",
    softmax_backward_reference,
    rows=("grad_y", "y", "grad_x"),
    fake=AS_FIRST,
    problem=after_gradient("y", "y", partial(softmax_problem, name="y")),
    inputs=_inputs,
    # a subnormal y may be flushed to zero before the gradient, up to 64, multiplies it
    tolerance=Tolerance(
        rtol=units(float32=2.0, half=1.1),
        atol=underflow(128) | {"float16": underflow()["float16"]},
        scale=_scale,
    ),
    kinds=KINDS,
    view=rows_last,
)

"""The gradients of layer_norm by its input, its weight and its bias."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...contract import Floor, RowMajor, Tolerance
from ...problem import Problem
from .. import fills
from ..checks import check_eps
from ..families import after_gradient, rows_op
from ..rounding import fp32_weight, underflow, units
from .layer_norm import KINDS, LAYER_NORM, drawn, examples, layer_norm_problem, normalised, offset


def layer_norm_backward_reference(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    need_x: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With ``u = (x - mean(x)) / sqrt(var(x) + eps)`` and ``g = grad_y * weight`` (Ba et al., 2016):
    ``(g - mean(g) - u * mean(g * u)) / sqrt(var(x) + eps)``, ``sum(grad_y * u)`` and ``sum(grad_y)`` over rows; halves
    in fp32. Only the dtype of ``bias`` is used.

    A gradient is an empty tensor if it is not needed, or if its weight or bias is not given.
    """
    check_eps("layer_norm_backward", eps)
    unit, inverse = normalised(x, eps)
    gradient = grad_y.to(unit.dtype)
    grad_x, grad_weight, grad_bias = x.new_empty(0), _none_of(x, weight), _none_of(x, bias)
    if need_x:
        weighted = gradient if weight is None else gradient * weight.to(unit.dtype)
        common = weighted.mean(-1, keepdim=True) + unit * (weighted * unit).mean(-1, keepdim=True)
        grad_x = ((weighted - common) * inverse).to(x.dtype).contiguous()
    if need_weight and weight is not None:
        grad_weight = (gradient * unit).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
    if need_bias and bias is not None:
        grad_bias = gradient.reshape(-1, x.shape[-1]).sum(0).to(bias.dtype)
    return grad_x, grad_weight, grad_bias


def _none_of(x: torch.Tensor, learnt: torch.Tensor | None) -> torch.Tensor:
    return (x if learnt is None else learnt).new_empty(0)


def _outputs(
    _: Any, x: Any, weight: Any, bias: Any, __: Any, need_x: bool = True, need_weight: bool = True,
    need_bias: bool = True,
) -> list[tuple[Any, torch.dtype]]:  # fmt: skip
    told = [(x.shape if need_x else (0,), x.dtype)]
    for learnt, needed in ((weight, need_weight), (bias, need_bias)):
        there = learnt is not None
        told.append((learnt.shape if there and needed else (0,), learnt.dtype if there else x.dtype))
    return told


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    grad_y = fills.normal((problem.rows, problem.cols), problem.torch_dtype, generator)
    x, *others = drawn(problem, kind, generator)
    if kind == "along":
        # the two subtracted means dominate: with gradients of other directions a wrong mean would not show
        grad_y += 4.0 * x + 2.0
    elif kind == "spike_last":
        # gradients of one sign, so that rows do not cancel
        grad_y[:, -1:].abs_().add_(0.5)
    elif kind == "near_zero":
        # in the gradient: its row of grad_x and its column of the others are NaN, where one in x would make them all so
        fills.plant_in_rows(grad_y, (torch.nan,), generator)
    return grad_y, x, *others, True, True, True


def _of_input(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output and to its row's root mean square.

    The error of the subtracted means affects the whole row: up to ``sqrt(cols)`` roundings for a serial sum, 24 times
    that where the gradient is four times x plus noise. With few columns the difference is small.
    """
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    few = min(512.0, 4096.0 / problem.cols**2)
    common: torch.Tensor = rms * (64 + 24 * math.sqrt(problem.cols) + 4 * offset(problem)) + few
    return reference.abs() + common * fp32_weight(problem)


def _over_rows(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output and to the root mean square of all: a sum over rows whose terms cancel.

    torch's CUDA kernel may round the sums of blocks of rows to half precision.
    """
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    sums = 32 + math.sqrt(problem.rows) + math.sqrt(problem.cols)
    of_means = 4 * offset(problem) * math.sqrt(problem.rows)
    beside = rms * 1.5 + fp32_weight(problem) * (rms * sums + of_means)
    return reference.abs() + beside


def _floor(problem: Problem) -> Floor:
    elements, learnt = problem.rows * problem.cols, problem.cols * (2 * problem.weight + problem.bias)
    return Floor((3 * elements + learnt) * problem.torch_dtype.itemsize, 14 * elements)


_RTOL = units(float32=2.0, half=1.1)

LAYER_NORM_BACKWARD = rows_op(
    "layer_norm_backward(Tensor grad_y, Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-5, "
    "bool need_x=True, bool need_weight=True, bool need_bias=True) "
    "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
    layer_norm_backward_reference,
    rows=("grad_y", "x", "grad_x"),
    fake=RowMajor(_outputs),
    problem=after_gradient("y", "x", layer_norm_problem),
    inputs=_inputs,
    examples=examples(),
    floor=_floor,
    tolerance=Tolerance(_RTOL, underflow(8), _over_rows),
    tolerances={"grad_x": Tolerance(_RTOL, underflow(8), _of_input)},
    kinds=(*KINDS, "along"),
    numbers=LAYER_NORM.numbers,
    alike=LAYER_NORM.alike,
    weights=LAYER_NORM.weights,
)

"""The gradients of linear by its input, its weight and its bias."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..contract import Floor, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, Value
from . import fills
from .checks import same_dtype, shape_text
from .families import gemm_op
from .linear import KINDS, LINEAR, drawn, over_rows_scale, sum_scale
from .rounding import underflow, units


def linear_backward_reference(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    need_x: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``grad_y @ weight``, ``grad_y.T @ x`` and ``grad_y.sum(0)`` over all rows; halves in fp32, rounded once.

    A gradient is an empty tensor if it is not needed, or if it is of a bias that is not given.
    """
    accumulator = torch.promote_types(x.dtype, torch.float32)
    gradient = grad_y.to(accumulator)
    rows = gradient.reshape(-1, weight.shape[0])
    grad_x, grad_weight, grad_bias = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if need_x:
        grad_x = gradient @ weight.to(accumulator)
    if need_weight:
        grad_weight = rows.T @ x.to(accumulator).reshape(-1, x.shape[-1])
    if need_bias and bias is not None:
        grad_bias = rows.sum(0)
    grads = (grad.to(x.dtype).contiguous() for grad in (grad_x, grad_weight, grad_bias))
    return next(grads), next(grads), next(grads)


def _outputs(
    _: Any, x: Any, weight: Any, bias: Any, need_x: bool = True, need_weight: bool = True, need_bias: bool = True
) -> list[tuple[Any, torch.dtype]]:
    return [
        (x.shape if need_x else (0,), x.dtype),
        (weight.shape if need_weight else (0,), x.dtype),
        (bias.shape if need_bias and bias is not None else (0,), x.dtype),
    ]


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    x, weight, gradient = (arguments.tensor(name) for name in ("x", "weight", "grad_y"))
    named = {name: arguments[name] for name in ("x", "weight", "bias")}
    posed = LINEAR.problem(Arguments(arguments.op, named))
    wanted = (*x.shape[:-1], weight.shape[0])
    if gradient.shape != wanted:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y is {shape_text(gradient.shape)} but y is {shape_text(wanted)}",
            hint="a gradient has the shape of what it is the gradient of; grad_y.expand_as(y) if it was reduced",
        )
    same_dtype(arguments.op, ("x", x), ("grad_y", gradient))
    return posed.dims if isinstance(posed, Problem) else posed


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weight, bias = drawn(problem, kind, generator)
    grad_y = fills.normal((problem.m, problem.n), problem.torch_dtype, generator)
    if kind == "spike_last":
        # in the last column as in x, so that no row and no column of it may be left out
        grad_y[:, -1:] = 8.0 * math.sqrt(problem.n)
        grad_y[-1:] *= 4.0
    elif kind == "constant":
        # its row of grad_x, its row of grad_weight and its place of grad_bias are NaN
        fills.plant_in_rows(grad_y, (torch.nan,), generator)
    return grad_y, x, weight, bias if problem.bias else None, True, True, True


def _floor(problem: Problem) -> Floor:
    m, n, k = problem.m, problem.n, problem.k
    moved = m * n + 2 * m * k + 2 * n * k + (n if problem.bias else 0)
    return Floor(bytes=moved * problem.torch_dtype.itemsize, flop=4 * m * n * k + (m * n if problem.bias else 0))


def _of_rows(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    return sum_scale(problem, reference, reference.square().mean(-1, keepdim=True).sqrt_(), problem.n)


_RTOL = units(float32=3.0, half=1.5)

LINEAR_BACKWARD = gemm_op(
    "linear_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bias=None, bool need_x=True, "
    "bool need_weight=True, bool need_bias=True) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
    linear_backward_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(_RTOL, underflow(), over_rows_scale),
    tolerances={"grad_x": Tolerance(_RTOL, underflow(), _of_rows)},
    kinds=KINDS,
    weights=LINEAR.weights,
)

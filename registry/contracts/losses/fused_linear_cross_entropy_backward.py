"""The gradients of fused_linear_cross_entropy by x, weight and bias, from the log-sum-exp of each row.

The logits are computed again, a part of them at a time: since the log-sum-exp is known, any part of the vocabulary has
its gradient by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Arguments, Problem, Value
from .cross_entropy_backward import check_saved, cross_entropy_backward_reference, drawn_gradient, row_factors
from .fused_linear_cross_entropy import FUSED_LINEAR_CROSS_ENTROPY
from .linear_logits import (
    check_linear_loss,
    drawn_linear,
    linear_log_sum_exp,
    linear_loss_examples,
    linear_loss_problem,
    row_spans,
)
from .logit_gradients import GRADIENT_ATOL, GRADIENT_RTOL, LogitGradients
from .targets import Targets, accumulator, check_smoothing, check_target_data


def fused_linear_cross_entropy_backward_reference(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    grad_loss: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    lse: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    need_x: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``grad_x`` [rows, k], ``grad_weight`` [cols, k] and ``grad_bias`` [cols], from the forward op's ``lse`` [rows].

    With ``g`` the gradient of ``cross_entropy`` by the logits these are ``g @ weight``, ``g.T @ x`` and ``g.sum(0)``,
    in fp32 or wider and rounded once. A gradient is an empty tensor if it is not needed, or if it is of a bias that is
    not given. An ignored row has a gradient of 0 and no part in the others, and its x is not read. A target outside of
    the vocabulary makes its row of grad_x NaN, and all of grad_weight and grad_bias.
    """
    check_smoothing("fused_linear_cross_entropy_backward", label_smoothing)
    wide, cols = accumulator(x), weight.shape[0]
    targets = Targets.among(cols, target, ignore_index, wide)
    slope = row_factors(grad_loss, targets, reduction)
    kept_x = x.to(wide).masked_fill(~targets.kept[:, None], 0.0)
    turned, offset = weight.to(wide), None if bias is None else bias.to(wide)
    grad_x, grad_weight, grad_bias = (each.new_zeros(each.shape) for each in (kept_x, turned, turned[:, 0]))
    for rows in row_spans(x.shape[0], cols):
        logits = torch.nn.functional.linear(kept_x[rows], turned, offset)
        given = (slope[rows], logits, target[rows], None, lse[rows], ignore_index, "none", label_smoothing)
        gradient = cross_entropy_backward_reference(*given)
        if need_x:
            grad_x[rows] = gradient @ turned
        if need_weight:
            grad_weight += gradient.T @ kept_x[rows]
        if need_bias and bias is not None:
            grad_bias += gradient.sum(0)
    none = x.new_empty(0)
    return (
        grad_x.to(x.dtype) if need_x else none,
        grad_weight.to(x.dtype) if need_weight else none.clone(),
        grad_bias.to(x.dtype) if need_bias and bias is not None else none.clone(),
    )


def _outputs(
    _grad: Any, x: Any, weight: Any, _target: Any, bias: Any, _lse: Any, _index: int, _reduction: str, _by: float,
    need_x: bool, need_weight: bool, need_bias: bool,
) -> list[Any]:  # fmt: skip
    return [
        (x.shape if need_x else (0,), x.dtype),
        (weight.shape if need_weight else (0,), x.dtype),
        (bias.shape if need_bias and bias is not None else (0,), x.dtype),
    ]


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    dims = linear_loss_problem(arguments)
    check_saved(arguments, "x", str(dims["reduction"]), "fused_linear_cross_entropy")
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weight, target, bias, ignore_index, smoothing = drawn_linear(problem, kind, generator)
    grad_loss, lse = drawn_gradient(problem, generator), linear_log_sum_exp(x, weight, bias)
    return (grad_loss, x, weight, target, bias, lse, ignore_index, problem.reduction, smoothing, True, True, True)


def _of_rows(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the root of the squared errors of the terms that it sums."""
    return LogitGradients(problem, values).of_rows(reference) if reference.numel() else reference


def _of_columns(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the root of the squared errors of the terms that it sums."""
    return LogitGradients(problem, values).of_columns(reference) if reference.numel() else reference


def _floor(problem: Problem) -> Floor:
    rows, cols, k = problem.rows, problem.cols, problem.k
    size = problem.torch_dtype.itemsize
    losses = rows if problem.reduction == "none" else 1
    moved = 2 * (rows * k + cols * k + (cols if problem.bias else 0)) + losses
    return Floor(bytes=moved * size + rows * (8 + max(4, size)), flop=6 * rows * cols * k + 4 * rows * cols)


FUSED_LINEAR_CROSS_ENTROPY_BACKWARD = Op(
    name="fused_linear_cross_entropy_backward",
    schema=(
        "fused_linear_cross_entropy_backward(Tensor grad_loss, Tensor x, Tensor weight, Tensor target, Tensor? bias,"
        ' Tensor lse, int ignore_index=-100, str reduction="mean", float label_smoothing=0.0, bool need_x=True,'
        " bool need_weight=True, bool need_bias=True) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)"
    ),
    version=1,
    reference=fused_linear_cross_entropy_backward_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(GRADIENT_RTOL, GRADIENT_ATOL, _of_columns),
    tolerances={"grad_x": Tolerance(GRADIENT_RTOL, GRADIENT_ATOL, _of_rows)},
    static=FUSED_LINEAR_CROSS_ENTROPY.static,
    dynamic=FUSED_LINEAR_CROSS_ENTROPY.dynamic,
    choices=FUSED_LINEAR_CROSS_ENTROPY.choices,
    kinds=FUSED_LINEAR_CROSS_ENTROPY.kinds,
    examples=linear_loss_examples(),
    check=check_linear_loss,
    check_data=partial(check_target_data, "fused_linear_cross_entropy_backward"),
    independent=frozenset({"target"}),
    numbers=frozenset({"label_smoothing", "ignore_index"}),
    weights=FUSED_LINEAR_CROSS_ENTROPY.weights,
)

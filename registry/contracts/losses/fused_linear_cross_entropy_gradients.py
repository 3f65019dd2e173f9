"""fused_linear_cross_entropy and its gradients in one pass, for a training step: the logits are made once.

A row's logits, its loss and the logits' gradient follow from each other, so that a chunk of rows is done when its three
products are; the backward of ``fused_linear_cross_entropy``, which comes later, makes the logits again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Arguments, Problem, Value, check_choice
from ..rounding import FLOAT32_UNIT, fp32_weight, underflow, unit_roundoff
from .fused_linear_cross_entropy import FUSED_LINEAR_CROSS_ENTROPY, fused_linear_cross_entropy_reference, row_errors
from .fused_linear_cross_entropy_backward import fused_linear_cross_entropy_backward_reference
from .linear_logits import (
    check_linear_loss,
    drawn_linear,
    linear_log_sum_exp,
    linear_loss_examples,
    linear_loss_problem,
)
from .logit_gradients import GRADIENT_ATOL, GRADIENT_RTOL, LogitGradients
from .targets import Targets, accumulator, check_target_data

SCALAR_REDUCTIONS = ("mean", "sum")

_PART = 512
"""Rows whose part of grad_weight may be rounded to its dtype before the parts are added."""


def fused_linear_cross_entropy_gradients_reference(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    need_x: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss of ``fused_linear_cross_entropy``, "mean" or "sum", and its gradients by x, weight and bias.

    x is [rows, k], weight [cols, k], target [rows] int64, bias [cols]. The loss is one number in float32 (of float64
    in float64): it is not rounded to the dtype of halves. ``grad_x`` [rows, k], ``grad_weight`` [cols, k] and
    ``grad_bias`` [cols] have the dtype of x; each is an empty tensor if it is not needed, or if it is of a bias that is
    not given. Ignored rows, targets outside of the vocabulary and label smoothing are as in that op and its backward.

    In float16 the gradients of a mean are near the least number that it has, and a loss scale comes too late for them:
    there take the backward op.
    """
    wide = accumulator(x)
    offset = None if bias is None else bias.to(wide)
    how = (ignore_index, reduction, label_smoothing)
    loss, lse = fused_linear_cross_entropy_reference(x.to(wide), weight.to(wide), target, offset, *how)
    one, needs = torch.ones_like(loss), (need_x, need_weight, need_bias)
    return loss, *fused_linear_cross_entropy_backward_reference(one, x, weight, target, bias, lse, *how, *needs)


def _outputs(
    x: Any, weight: Any, _target: Any, bias: Any, _index: int, _reduction: str, _by: float, need_x: bool,
    need_weight: bool, need_bias: bool,
) -> list[Any]:  # fmt: skip
    return [
        ((), accumulator(x)),
        (x.shape if need_x else (0,), x.dtype),
        (weight.shape if need_weight else (0,), x.dtype),
        (bias.shape if need_bias and bias is not None else (0,), x.dtype),
    ]


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    check_choice(arguments.op, "reduction", arguments.text("reduction"), SCALAR_REDUCTIONS)
    return linear_loss_problem(arguments)


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weight, target, bias, ignore_index, smoothing = drawn_linear(problem, kind, generator)
    return x, weight, target, bias, ignore_index, problem.reduction, smoothing, True, True, True


def _of_loss(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Scale in float32's roundings, since the loss is float32 beside halves whose logits are rounded."""
    _, error = row_errors(problem, values)
    total = error.sum()
    if problem.reduction == "mean":
        counted = Targets.among(problem.cols, values["target"], values["ignore_index"], torch.float64)
        total = total / counted.gain.sum().clamp_min(1.0)
    allowed: torch.Tensor = reference.abs() * math.sqrt(problem.rows) + total / fp32_weight(problem)
    return allowed


def _gradients(problem: Problem, values: Mapping[str, Any]) -> LogitGradients:
    x, weight, bias = values["x"], values["weight"], values["bias"]
    lse_error, _ = row_errors(problem, values)
    known = {"grad_loss": x.new_ones((), dtype=accumulator(x)), "lse": linear_log_sum_exp(x, weight, bias)}
    return LogitGradients(problem, {**values, **known}, lse_error)


def _of_rows(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the root of the squared errors of the terms that it sums."""
    return _gradients(problem, values).of_rows(reference) if reference.numel() else reference


def _of_columns(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """The scale of ``grad_weight`` and ``grad_bias``: the backward op's, and a rounding after each ``_PART`` rows."""
    if not reference.numel():
        return reference
    parts = problem.rows // _PART
    return _gradients(problem, values).of_columns(reference) * (1.0 + math.sqrt(parts))


def _floor(problem: Problem) -> Floor:
    rows, cols, k = problem.rows, problem.cols, problem.k
    size = problem.torch_dtype.itemsize
    moved = 2 * (rows * k + cols * k + (cols if problem.bias else 0)) * size + 8 * rows + 4
    return Floor(bytes=moved, flop=6 * rows * cols * k + 9 * rows * cols)


FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS = Op(
    name="fused_linear_cross_entropy_gradients",
    schema=(
        "fused_linear_cross_entropy_gradients(Tensor x, Tensor weight, Tensor target, Tensor? bias=None,"
        ' int ignore_index=-100, str reduction="mean", float label_smoothing=0.0, bool need_x=True,'
        " bool need_weight=True, bool need_bias=True)"
        " -> (Tensor loss, Tensor grad_x, Tensor grad_weight, Tensor grad_bias)"
    ),
    version=1,
    reference=fused_linear_cross_entropy_gradients_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(GRADIENT_RTOL, GRADIENT_ATOL, _of_columns),
    tolerances={
        "loss": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(4), _of_loss
        ),
        "grad_x": Tolerance(GRADIENT_RTOL, GRADIENT_ATOL, _of_rows),
    },
    static=FUSED_LINEAR_CROSS_ENTROPY.static,
    dynamic=FUSED_LINEAR_CROSS_ENTROPY.dynamic,
    choices={"reduction": SCALAR_REDUCTIONS, "bias": (False, True)},
    kinds=FUSED_LINEAR_CROSS_ENTROPY.kinds,
    examples=tuple(each for each in linear_loss_examples() if each["reduction"] in SCALAR_REDUCTIONS),
    check=check_linear_loss,
    check_data=partial(check_target_data, "fused_linear_cross_entropy_gradients"),
    independent=frozenset({"target"}),
    numbers=frozenset({"label_smoothing", "ignore_index"}),
    weights=FUSED_LINEAR_CROSS_ENTROPY.weights,
)

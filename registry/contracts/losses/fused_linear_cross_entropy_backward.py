"""The gradients of fused_linear_cross_entropy by x, weight and bias, from the log-sum-exp of each row.

The logits are computed again, a part of them at a time: since the log-sum-exp is known, any part of the vocabulary has
its gradient by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Arguments, Problem, Value
from ..rounding import fp32_weight, underflow, units
from .cross_entropy_backward import check_saved, cross_entropy_backward_reference, drawn_gradient, row_factors
from .fused_linear_cross_entropy import FUSED_LINEAR_CROSS_ENTROPY
from .linear_logits import (
    check_linear_loss,
    drawn_linear,
    linear_log_sum_exp,
    linear_loss_examples,
    linear_loss_problem,
    logit_errors,
    row_spans,
)
from .targets import Targets, accumulator, check_smoothing


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
    grad_x, grad_weight, grad_bias = (torch.zeros_like(each) for each in (kept_x, turned, turned[:, 0]))
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


_RTOL = units(float32=3.0, half=1.5)


class _LogitGradients:
    """What each element of the logits' gradient may err by, and what follows for the op's three results."""

    def __init__(self, problem: Problem, values: Mapping[str, Any]) -> None:
        self._problem, self._values = problem, values
        self._wide = accumulator(values["x"])
        self._targets = Targets.among(problem.cols, values["target"], values["ignore_index"], self._wide)
        factors = row_factors(values["grad_loss"], self._targets, problem.reduction)
        counts = self._targets.kept & self._targets.inside
        self._factors = factors.abs().masked_fill(~counts, 0.0).nan_to_num(0.0, 0.0, 0.0)
        self._of_sum = fp32_weight(problem) * (8.0 + math.sqrt(max(problem.rows, problem.cols)))
        self._least = self._lost() / _RTOL[str(problem.dtype)]

    def _lost(self) -> float:
        """What a gradient may lose below the least number: half a step of float16, of others all that is subnormal.

        There exponentials are lost, too, before they are multiplied by the gradient of their row's loss.
        """
        if self._problem.dtype == "float16":
            return 2.0**-25
        largest = self._factors.max().item() if self._factors.numel() else 0.0
        return float(torch.finfo(self._problem.torch_dtype).tiny * max(1.0, largest))

    def squares(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and the squares of what their gradients may err by, in roundings of the dtype: [rows, cols].

        A gradient may be rounded to the dtype; its exponential has the error of a logit, which counts exponentially.
        """
        rtol, smoothing = _RTOL[str(self._problem.dtype)], self._values["label_smoothing"]
        for rows, logits, of_logit in logit_errors(self._problem, self._values):
            power = logits - self._values["lse"][rows, None]
            error = of_logit + fp32_weight(self._problem) * (16.0 + 2.0 * power.abs())
            p = power.exp().nan_to_num(0.0, 0.0, 0.0)
            gradient = p + smoothing / self._problem.cols
            gradient.scatter_add_(-1, self._targets.place[rows, None], torch.ones_like(gradient[:, :1]))
            allowed = (
                gradient * (3.0 + self._of_sum) + p * (error * rtol).nan_to_num(0.0).clamp_max_(20.0).expm1_() / rtol
            )
            # in float64: the square of 1e-28 is 0 in float32
            yield rows, (allowed * self._factors[rows, None]).double().square_()

    def of_rows(self, reference: torch.Tensor) -> torch.Tensor:
        """The scale of grad_x."""
        weight = self._values["weight"].double()
        squares = torch.cat([each @ weight.square() for _, each in self.squares()])
        return self._together(reference, squares, weight.abs().sum(0))

    def of_columns(self, reference: torch.Tensor) -> torch.Tensor:
        """The scale of grad_weight, or of grad_bias, whose factor is 1 where that of grad_weight is x."""
        x = self._values["x"].double().masked_fill(~self._targets.kept[:, None], 0.0)
        if reference.dim() == 1:
            x = torch.ones_like(x[:, :1])
        squares = torch.zeros(self._problem.cols, x.shape[1], dtype=torch.float64, device=x.device)
        for rows, each in self.squares():
            squares.addmm_(each.T, x[rows].square())
        return self._together(reference, squares.view(reference.shape), x.abs().sum(0))

    def _together(self, reference: torch.Tensor, squares: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
        """``lost``: the sum of what gradients are multiplied by, since all of them may be too small alike."""
        error = squares.sqrt_() + self._least * lost
        return reference.abs() * (1.0 + self._of_sum) + error.nan_to_num(0.0, 0.0, 0.0)


def _of_rows(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the root of the squared errors of the terms that it sums."""
    return _LogitGradients(problem, values).of_rows(reference) if reference.numel() else reference


def _of_columns(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the root of the squared errors of the terms that it sums."""
    return _LogitGradients(problem, values).of_columns(reference) if reference.numel() else reference


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
    tolerance=Tolerance(_RTOL, underflow(128) | {"float16": underflow()["float16"]}, _of_columns),
    tolerances={"grad_x": Tolerance(_RTOL, underflow(128) | {"float16": underflow()["float16"]}, _of_rows)},
    static=FUSED_LINEAR_CROSS_ENTROPY.static,
    dynamic=FUSED_LINEAR_CROSS_ENTROPY.dynamic,
    choices=FUSED_LINEAR_CROSS_ENTROPY.choices,
    kinds=FUSED_LINEAR_CROSS_ENTROPY.kinds,
    examples=linear_loss_examples(),
    check=check_linear_loss,
    weights=FUSED_LINEAR_CROSS_ENTROPY.weights,
)

"""Errors by rounding of the logits' gradient, and of the gradients of a linear layer's x, weight and bias by it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...problem import Problem
from ..rounding import fp32_weight, underflow, units
from .cross_entropy_backward import row_factors
from .linear_logits import logit_errors
from .targets import Targets, accumulator

GRADIENT_RTOL = units(float32=3.0, half=1.5)
GRADIENT_ATOL = underflow(128) | {"float16": underflow()["float16"]}


class LogitGradients:
    """The allowed error of each element of the logits' gradient, and those of grad_x, grad_weight and grad_bias.

    ``values`` has ``grad_loss`` and ``lse`` beside the arguments of the loss. ``lse_error`` [rows], in roundings of the
    dtype: what a row's log-sum-exp may err by, where it is not an argument of the op.
    """

    def __init__(self, problem: Problem, values: Mapping[str, Any], lse_error: torch.Tensor | None = None) -> None:
        self._problem, self._values, self._lse_error = problem, values, lse_error
        self._wide = accumulator(values["x"])
        self._targets = Targets.among(problem.cols, values["target"], values["ignore_index"], self._wide)
        factors = row_factors(values["grad_loss"], self._targets, problem.reduction)
        counts = self._targets.kept & self._targets.inside
        self._factors = factors.abs().masked_fill(~counts, 0.0).nan_to_num(0.0, 0.0, 0.0)
        self._of_sum = fp32_weight(problem) * (8.0 + math.sqrt(max(problem.rows, problem.cols)))
        self._least = self._lost() / GRADIENT_RTOL[str(problem.dtype)]

    def _lost(self) -> float:
        """The part of a gradient that may be lost near 0: half a step of float16, else all subnormal numbers.

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
        rtol, smoothing = GRADIENT_RTOL[str(self._problem.dtype)], self._values["label_smoothing"]
        for rows, logits, of_logit in logit_errors(self._problem, self._values):
            power = logits - self._values["lse"][rows, None]
            error = of_logit + fp32_weight(self._problem) * (16.0 + 2.0 * power.abs())
            if self._lse_error is not None:
                error = error + self._lse_error[rows, None].to(error.dtype)
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
        scale = self._together(reference, squares, weight.abs().sum(0))
        if self._lse_error is None:
            return scale
        # an error of the log-sum-exp is one of all the row's exponentials alike, whose sum with the weight this is
        even = self._values["label_smoothing"] * weight.mean(0).abs()
        together = reference.abs() + self._factors[:, None] * (weight[self._targets.place].abs() + even)
        found: torch.Tensor = scale + (self._lse_error[:, None] * together).nan_to_num(0.0, 0.0, 0.0)
        return found

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

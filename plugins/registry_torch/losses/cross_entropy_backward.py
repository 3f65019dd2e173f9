"""The gradient of cross_entropy: torch's operators in place, and what Inductor makes of the formula."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .targets import RowTargets, row_targets


def _factors(grad_loss: torch.Tensor, targets: RowTargets, reduction: str) -> torch.Tensor:
    """The gradient of each row's loss [rows, 1]; of one number [1, 1]."""
    factor = grad_loss.to(targets.gain.dtype)
    if reduction == "mean":
        factor = factor / targets.gain.sum()
    return factor.reshape(-1, 1)


def _parts(
    logits: torch.Tensor, targets: RowTargets, weight: torch.Tensor | None, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | float]:
    """Factors of a row's exponentials [rows, 1] and of its target [rows, 1], and what is taken from every column."""
    of_target, cols = (1.0 - smoothing) * targets.gain[:, None], logits.shape[-1]
    if not smoothing:
        return of_target, of_target, 0.0
    if weight is None:
        return of_target + smoothing, of_target, smoothing / cols
    each = weight.to(targets.gain.dtype) * (smoothing / cols)
    return of_target + each.sum(), of_target, each


def in_place(
    grad_loss: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None,
    lse: torch.Tensor, ignore_index: int, reduction: str, smoothing: float,
) -> torch.Tensor:  # fmt: skip
    """``[rows, cols]``, in fp32 or wider with one tensor of that size."""
    targets = row_targets(logits, target, weight, ignore_index)
    of_all, of_target, even = _parts(logits, targets, weight, smoothing)
    gradient = torch.sub(logits, lse[:, None]).exp_().mul_(of_all)
    if smoothing:
        gradient.sub_(even)
    place = targets.place[:, None]
    gradient.scatter_(-1, place, gradient.gather(-1, place) - of_target)
    gradient.mul_(_factors(grad_loss, targets, reduction)).masked_fill_(~targets.kept[:, None], 0.0)
    return gradient.masked_fill_(targets.outside[:, None], math.nan).to(logits.dtype).contiguous()


def fused(
    grad_loss: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None,
    lse: torch.Tensor, ignore_index: int, reduction: str, smoothing: float,
) -> torch.Tensor:  # fmt: skip
    """``[rows, cols]`` without a lookup or a scatter: each column is compared with the row's target."""
    targets = row_targets(logits, target, weight, ignore_index)
    of_all, of_target, even = _parts(logits, targets, weight, smoothing)
    column = torch.arange(logits.shape[-1], device=logits.device)
    gradient = (logits.to(lse.dtype) - lse[:, None]).exp() * of_all - even
    gradient = gradient - torch.where(column == targets.place[:, None], of_target, 0.0)
    gradient = (gradient * _factors(grad_loss, targets, reduction)).masked_fill(~targets.kept[:, None], 0.0)
    return gradient.masked_fill(targets.outside[:, None], math.nan).to(logits.dtype).contiguous()


class CrossEntropyBackward(Native):
    """``exp(x - lse)`` and what the loss makes of it, operator by operator in place."""

    op = "cross_entropy_backward"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return in_place(*arguments)

        return run


class CompiledCrossEntropyBackward(InductorImplementation):
    """The formula; Inductor makes one pass of it."""

    op = "cross_entropy_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes the loss's gradient, the loss's three tensors, ``[rows]``, and the loss's attributes."""
        return fused(*values)

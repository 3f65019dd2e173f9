"""cross_entropy by torch's log-softmax, and what Inductor makes of the formula.

torch's own loss returns no log-sum-exp, and stops at a target outside of the vocabulary, on a GPU for good.
"""

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
from .targets import RowTargets, accumulator, row_targets

Values = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int, str, float]


def _reduced(losses: torch.Tensor, targets: RowTargets, reduction: str, dtype: torch.dtype) -> torch.Tensor:
    losses = losses.masked_fill(~targets.kept, 0.0).masked_fill(targets.outside, math.nan)
    if reduction == "mean":
        losses = losses.sum() / targets.gain.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(dtype)


def _smoothed(losses: torch.Tensor, surprise: torch.Tensor, weight: torch.Tensor | None, by: float) -> torch.Tensor:
    """The losses smoothed ``by`` the weighted mean of ``surprise``, the negative log-probabilities [rows, cols]."""
    even = surprise if weight is None else surprise * weight.to(surprise.dtype)
    return (1.0 - by) * losses + by * even.mean(-1)


def by_log_softmax(values: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and log-sum-exp by torch's log-softmax, in fp32 or wider."""
    logits, target, weight, ignore_index, reduction, smoothing = values
    targets = row_targets(logits, target, weight, ignore_index)
    logs = torch.log_softmax(logits, -1, dtype=accumulator(logits))
    lse = logits.amax(-1).to(logs.dtype) - logs.amax(-1)
    losses = logs.gather(-1, targets.place[:, None])[:, 0].neg() * targets.gain
    if smoothing:
        losses = _smoothed(losses, logs.neg(), weight, smoothing)
    return _reduced(losses, targets, reduction, logits.dtype), lse.masked_fill(~targets.kept, 0.0)


def by_formula(values: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and log-sum-exp by maximum and sum of exponentials, which a compiler fuses; in fp32 or wider."""
    logits, target, weight, ignore_index, reduction, smoothing = values
    targets, wide = row_targets(logits, target, weight, ignore_index), logits.to(accumulator(logits))
    most = wide.amax(-1)
    lse = most + (wide - most[:, None]).exp().sum(-1).log()
    losses = (lse - logits.gather(-1, targets.place[:, None])[:, 0]) * targets.gain
    if smoothing:
        losses = _smoothed(losses, lse[:, None] - wide, weight, smoothing)
    return _reduced(losses, targets, reduction, logits.dtype), lse.masked_fill(~targets.kept, 0.0)


class CrossEntropy(Native):
    """``torch.log_softmax`` in float32 and a lookup; two more reductions for the log-sum-exp."""

    op = "cross_entropy"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return by_log_softmax(arguments)

        return run


class CompiledCrossEntropy(InductorImplementation):
    """The formula; Inductor fuses it into one or two passes over the logits."""

    op = "cross_entropy"
    name = "torch.compile"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[rows, cols]``, ``[rows]``, ``[cols]`` or None, the ignored index, reduction and smoothing."""
        return by_formula(values)

"""QuACK's cross-entropy and its gradient.

It knows no label smoothing, reads memory outside of the logits for a target outside of the vocabulary, and multiplies
the NaN of an ignored row by 0. Such rows are seen to here, and label smoothing is torch's.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any, NamedTuple

import torch

from .norms import quack_of
from .rows import reasons


class _CountedRows(NamedTuple):
    """The rows of a call. ``place`` is the target where a row ``counts``, and class 0 elsewhere."""

    ignored: torch.Tensor
    counts: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, target: torch.Tensor, cols: int, ignore_index: int) -> _CountedRows:
        ignored = target == ignore_index
        counts = ~ignored & (target >= 0) & (target < cols)
        return cls(ignored, counts, target.masked_fill(~counts, 0))

    def total(self, weight: torch.Tensor | None) -> torch.Tensor:
        """What a mean divides by: the number of rows that count, or the sum of their weights."""
        gains = self.counts if weight is None else weight.float()[self.place].masked_fill(~self.counts, 0.0)
        return gains.sum()


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the log-sum-exp of each row."""
    rows = _CountedRows.of(target, logits.shape[1], ignore_index)
    losses, lse = _functions().cross_entropy_fwd(logits, rows.place, weight=weight, ignore_index=-1, return_lse=True)
    if label_smoothing:
        even = _even(logits, lse, weight)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * even
    losses = losses.masked_fill_(~rows.counts, math.nan).masked_fill_(rows.ignored, 0.0)
    if reduction == "mean":
        losses = losses.sum() / rows.total(weight)
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(logits.dtype), lse.masked_fill_(rows.ignored, 0.0)


def _even(logits: torch.Tensor, lse: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """The mean over classes of what each would lose as a target, float32 [rows]."""
    surprise = lse[:, None] - logits.float()
    return (surprise if weight is None else surprise * weight.float()).mean(-1)


def cross_entropy_backward(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    lse: torch.Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Tensor:
    """The gradient by the logits. It waits for the device to say whether there are rows that do not count."""
    rows = _CountedRows.of(target, logits.shape[1], ignore_index)
    slope = grad_loss.float()
    if reduction == "mean":
        slope = slope / rows.total(weight)
    slopes = slope.expand(target.shape).contiguous()
    if label_smoothing:
        found = _smoothed(slopes, logits, rows, weight, lse, label_smoothing)
    else:
        found = _functions().cross_entropy_bwd(logits, rows.place, slopes, lse, weight=weight, ignore_index=-1)
    if not bool(rows.counts.all()):
        found[rows.ignored] = 0.0
        found[~rows.counts & ~rows.ignored] = math.nan
    return found


def _smoothed(
    slopes: torch.Tensor,
    logits: torch.Tensor,
    rows: _CountedRows,
    weight: torch.Tensor | None,
    lse: torch.Tensor,
    smoothing: float,
) -> torch.Tensor:
    """The gradient with label smoothing, in float32 and by torch."""
    cols = logits.shape[1]
    each = logits.new_ones(cols, dtype=torch.float32) if weight is None else weight.float()
    of_target = (1.0 - smoothing) * each[rows.place]
    of_all = of_target + smoothing / cols * each.sum()
    found = (logits.float() - lse[:, None]).exp_().mul_(of_all[:, None]).sub_(smoothing / cols * each)
    found.scatter_add_(1, rows.place[:, None], -of_target[:, None])
    return found.mul_(slopes[:, None]).to(logits.dtype)


@cache
def _functions() -> Any:
    return importlib.import_module("quack.cross_entropy")


CROSS_ENTROPY = quack_of("cross_entropy", cross_entropy, reasons)
CROSS_ENTROPY_BACKWARD = quack_of("cross_entropy_backward", cross_entropy_backward, reasons, capturable=False)

"""The targets of a loss's rows: which count, which are in the vocabulary, and the weight of their class."""

from __future__ import annotations

from typing import NamedTuple

import torch


class RowTargets(NamedTuple):
    """``place``: the target, 0 where it is ignored or outside; ``gain``: its class's weight, 0 there, too."""

    kept: torch.Tensor
    outside: torch.Tensor
    place: torch.Tensor
    gain: torch.Tensor


def accumulator(logits: torch.Tensor) -> torch.dtype:
    """The dtype of a loss's arithmetic: float32 for halves."""
    return torch.promote_types(logits.dtype, torch.float32)


def row_targets(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int
) -> RowTargets:
    """The targets of ``logits`` [rows, cols], each [rows]."""
    kept = target != ignore_index
    inside = (target >= 0) & (target < logits.shape[-1])
    counts = kept & inside
    place = torch.where(counts, target, 0)
    wide = accumulator(logits)
    gain = counts.to(wide) if weight is None else weight[place].to(wide).masked_fill(~counts, 0.0)
    return RowTargets(kept, kept & ~inside, place, gain)

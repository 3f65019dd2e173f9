"""The loss of language models by cross_entropy, on logits in the dtype that the model computes them in."""

from __future__ import annotations

from typing import Any

import torch

from ...api import call


def causal_lm_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """The mean loss of the next token, float32; transformers' ``ForCausalLMLoss`` without a copy of the logits in it.

    ``logits`` is [batch, seq, vocabulary]; of ``labels`` [batch, seq] each position predicts the next. With
    ``num_items_in_batch`` it is the sum divided by that.
    """
    if shift_labels is None:
        assert labels is not None
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    targets = shift_labels.reshape(-1).to(logits.device)
    rows = logits.reshape(-1, vocab_size)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss, lse = call("cross_entropy", rows, targets, ignore_index=ignore_index, reduction=reduction)
    exact = _in_float32(rows.detach(), targets, lse.detach(), ignore_index, reduction)
    # its value in fp32, its gradient by the op, whose loss is rounded to the logits' dtype
    loss = loss.float() + (exact - loss.detach().float())
    if num_items_in_batch is not None:
        count = (
            num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch
        )
        loss = loss / count
    result: torch.Tensor = loss
    return result


def _in_float32(
    rows: torch.Tensor, targets: torch.Tensor, lse: torch.Tensor, ignore_index: int, reduction: str
) -> torch.Tensor:
    kept = targets != ignore_index
    own = rows.gather(-1, targets.where(kept, 0)[:, None])[:, 0].float()
    losses = (lse.float() - own).where(kept, 0.0)
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()

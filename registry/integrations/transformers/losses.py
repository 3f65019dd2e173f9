"""The loss of language models by cross_entropy on logits in the model's dtype, or without logits by the fused op."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...api import call
from ...contracts.checks import HALVES
from .forwards.fused_losses import FusedOutput, fused_output
from .forwards.loss_gradients import has_gradients, loss_with_gradients


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
    ``num_items_in_batch`` it is the sum divided by that. Within a forward of ``FusedLossModel`` the output layer's
    input stands for ``logits``.
    """
    if shift_labels is None:
        assert labels is not None
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    targets = shift_labels.reshape(-1).to(logits.device)
    how: dict[str, Any] = {"ignore_index": ignore_index}
    how["reduction"] = "mean" if num_items_in_batch is None else "sum"
    output = fused_output(logits)
    if output is not None and has_gradients(output):
        loss = loss_with_gradients(output, targets, **how).float()
    else:
        loss = _loss(logits.reshape(-1, vocab_size) if output is None else output, targets, how)
    if num_items_in_batch is not None:
        count = (
            num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch
        )
        loss = loss / count
    result: torch.Tensor = loss
    return result


class _WithValue(torch.autograd.Function):
    """``value``, with the gradient of a loss."""

    @staticmethod
    def forward(_loss: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.dtype), None


def _loss(logits: torch.Tensor | FusedOutput, targets: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    """The loss of logits, or of what makes them, in float32."""
    if isinstance(logits, FusedOutput):
        loss, lse = call("fused_linear_cross_entropy", logits.rows, logits.weight, targets, logits.bias, **how)
    else:
        loss, lse = call("cross_entropy", logits, targets, **how)
    if loss.dtype in HALVES:
        with torch.no_grad():
            exact = _in_float32(logits, targets, lse, **how)
        # its gradient by the op, whose loss is rounded to the logits' dtype: in float16 a sum may be infinite
        loss = _WithValue.apply(loss, exact)
    result: torch.Tensor = loss.float()
    return result


def _in_float32(
    logits: torch.Tensor | FusedOutput, targets: torch.Tensor, lse: torch.Tensor, ignore_index: int, reduction: str
) -> torch.Tensor:
    """The loss of logits, or of what makes them, by the log-sum-exp of each row."""
    cols = logits.weight.shape[0] if isinstance(logits, FusedOutput) else logits.shape[-1]
    kept, inside = targets != ignore_index, (targets >= 0) & (targets < cols)
    place = targets.where(kept & inside, 0)
    own = logits.logits_of(place) if isinstance(logits, FusedOutput) else logits.gather(-1, place[:, None])[:, 0]
    losses = (lse.float() - own.float()).masked_fill(~inside, math.nan).where(kept, 0.0)
    return losses.sum() / (kept & inside).sum() if reduction == "mean" else losses.sum()

"""The fused loss of a training step with its gradients: they are computed in the forward, where the logits are."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....dispatch.torch_side.states import differentiating_otherwise
from ....dispatch.torch_side.torch_private import keeps_graph
from .fused_losses import FusedOutput


def has_gradients(output: FusedOutput) -> bool:
    """Whether a loss of ``output`` is to be computed with its gradients.

    In float16 they are not: before the loss is scaled they would be too small for that dtype. torch.func transforms no
    function that keeps gradients.
    """
    if not is_dynamo_compiling() and differentiating_otherwise():
        return False
    learnt = any(each is not None and each.requires_grad for each in (output.rows, output.weight, output.bias))
    return learnt and torch.is_grad_enabled() and output.rows.dtype is not torch.float16


def loss_with_gradients(output: FusedOutput, targets: torch.Tensor, ignore_index: int, reduction: str) -> torch.Tensor:
    """The loss of ``targets`` [rows], "mean" or "sum", in float32 or wider; its backward only scales its gradients."""
    loss: torch.Tensor = _LossWithGradients.apply(
        output.rows, output.weight, output.bias, targets, ignore_index, reduction
    )
    return loss


class _LossWithGradients(torch.autograd.Function):
    """Keeps the gradients that are needed, for a gradient of the loss of 1."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor,
        ignore_index: int, reduction: str,
    ) -> torch.Tensor:  # fmt: skip
        needs = ctx.needs_input_grad[:3]
        x, w, b = (each if each is None else each.detach() for each in (rows, weight, bias))
        how = (ignore_index, reduction, 0.0)
        loss, *found = call("fused_linear_cross_entropy_gradients", x, w, targets, b, *how, *needs)
        ctx.needs = needs
        ctx.save_for_backward(*[each for each, needed in zip(found, needs, strict=True) if needed])
        result: torch.Tensor = loss
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = iter([_scaled(each, grad_loss) for each in ctx.saved_tensors])
        return (*[next(scaled) if needed else None for needed in ctx.needs], None, None, None)


def _scaled(gradient: torch.Tensor, grad_loss: torch.Tensor) -> torch.Tensor:
    """``gradient * grad_loss``, multiplied in float32 and rounded once; in place where no other backward can follow."""
    # a tensor of one dimension is not rounded to the dtype of halves before
    factor = grad_loss.reshape(1)
    if not is_dynamo_compiling() and not keeps_graph():
        return gradient.mul_(factor)
    return (gradient * factor).to(gradient.dtype)

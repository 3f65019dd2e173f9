"""The end of a gated MLP in training: the activation's result is computed again for its gradients, and not kept.

The gradient of the last layer's weight needs that result, and the gradient of the activation what it was made of.
Autograd keeps both: of 8192 tokens and a width of 8192, 128 MiB more in each layer than this, which costs one more pass
of an activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....dispatch.torch_side.states import differentiating_otherwise
from .activations import ActivationKind, gated, gated_backward
from .linears import LinearForward, is_bare


def down_of_gated(down: torch.nn.Module, both: torch.Tensor, kind: ActivationKind) -> torch.Tensor:
    """``down(act(gate) * up)`` of ``both`` [..., 2 * d], gate first."""
    y: torch.Tensor
    y = _Recomputed.apply(both, down.weight, down.bias, kind) if _learns(down, both) else down(gated(both, kind))
    return y


def _learns(down: torch.nn.Module, both: torch.Tensor) -> bool:
    """Whether autograd would keep the activation's result for a plain linear layer whose weight learns.

    torch.compile decides for itself what is computed again, and torch.func transforms the two ops.
    """
    if is_dynamo_compiling() or not torch.is_grad_enabled() or torch.is_autocast_enabled(both.device.type):
        return False
    if differentiating_otherwise():
        return False
    if not isinstance(down, LinearForward) or not is_bare(down):
        return False
    return down.weight.requires_grad and both.dtype is down.weight.dtype


class _Recomputed(torch.autograd.Function):
    """The activation and the linear layer as one function of their inputs."""

    @staticmethod
    def forward(
        ctx: Any, both: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kind: ActivationKind
    ) -> torch.Tensor:
        ctx.kind = kind
        ctx.save_for_backward(both, weight, bias)
        y: torch.Tensor = call("linear", gated(both, kind), weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        both, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        given = (grad_y, gated(both, ctx.kind), weight, bias)
        gradients: list[torch.Tensor | None] = [*call("linear_backward", *given, *needs)]
        del given
        if needs[0]:
            gradients[0] = gated_backward(gradients[0], both, ctx.kind)
        return *[each if needed else None for each, needed in zip(gradients, needs, strict=True)], None

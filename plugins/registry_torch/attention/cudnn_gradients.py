"""cuDNN's gradients of attention, by torch's private operator."""

from __future__ import annotations

import torch

from .aten import AttentionGradients, GradientCall

_NO_DROPOUT = -0.0
"""A dropout of 0 with other bits than that of torch's own calls, which keeps our plans apart from theirs.

cuDNN plans for the strides of all tensors. torch 2.11 finds a plan again by the shapes and strides of queries, keys,
values and bias and by the bits of the dropout, and not by the strides of outputs and their gradients: a call with other
ones got the plan of an earlier call, and gradients that were wrong by half their length, ours as torch's behind ours.
"""


def cudnn_gradients(call: GradientCall, bias: torch.Tensor | None = None) -> AttentionGradients:
    """``grad_q``, ``grad_k`` and ``grad_v`` of a call; ``bias`` [batch, heads, q_len, kv_len] is added to the logits.

    Outputs and their gradients are brought to the layout of the queries, so that the strides of queries tell all.
    """
    seed = torch.zeros((), dtype=torch.int64, device=call.q.device)
    dense = call.q.is_contiguous()
    strides = call.q.stride() if dense else torch.empty_like(call.q, device="meta").stride()
    grad_out, out = (_with_strides(each, strides) for each in (call.grad_out, call.out))
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *_by_heads(grad_out, call.q, call.k, call.v, out), call.lse.unsqueeze(-1), seed, seed, bias, None, None,
        *call.lengths, _NO_DROPOUT, call.causal, scale=call.scale,
    )  # fmt: skip
    return _by_heads(*found)


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor, or a copy of it with these strides."""
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _by_heads(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([x.transpose(1, 2) for x in tensors])

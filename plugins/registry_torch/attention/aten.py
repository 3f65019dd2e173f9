"""torch's private attention operators, by which its public function computes: that one returns no log-sum-exp.

All take and return heads as the op has them, [batch, length, heads, head_dim], and return the log-sum-exp as
[batch, heads, q_len], float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

AttentionGradients = tuple[torch.Tensor, ...]
_CAUSAL_FROM_THE_END = 2
_LEAST_SCALE = torch.finfo(torch.float32).tiny
_EFFICIENT_ROWS = 32
"""Rows to a multiple of which the memory-efficient kernels pad the log-sum-exp."""


class GradientCall(NamedTuple):
    """The values of a call of the gradient, in the order of its schema."""

    grad_out: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    out: torch.Tensor
    lse: torch.Tensor
    causal: bool
    scale: float | None
    softcap: float
    window: int
    need_q: bool
    need_k: bool
    need_v: bool

    @property
    def heads(self) -> tuple[torch.Tensor, ...]:
        """The tensors of heads in the order in which torch's gradients take them."""
        return self.grad_out, self.q, self.k, self.v

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and of keys of a sequence."""
        return self.q.shape[1], self.k.shape[1]


def missing(*names: str) -> list[str]:
    """Names of the ``aten`` operators, of those given, that this version of torch lacks."""
    return [name for name in names if not hasattr(torch.ops.aten, name)]


def _sides(causal: bool, window: int) -> Mapping[str, int | None]:
    """Keys before and after a query's own that it sees, as FlashAttention is told; None for all."""
    if window < 0:
        return {"window_size_left": None, "window_size_right": None}
    return {"window_size_left": window, "window_size_right": 0 if causal else window}


def nonzero(scale: float | None) -> float | None:
    """A scale that FlashAttention 2 takes for one of 0: it multiplies the -inf of hidden logits by the scale."""
    return _LEAST_SCALE if scale == 0 else scale


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention 2. A row that sees no key has an lse of inf."""
    sizes = (None, None, q.shape[1], k.shape[1])
    sides = _sides(causal, window)
    forward = torch.ops.aten._flash_attention_forward
    out, lse, *_ = forward(q, k, v, *sizes, 0.0, causal, False, scale=nonzero(scale), **sides)
    return out, lse


def flash_backward(call: GradientCall) -> AttentionGradients:
    """The gradients by FlashAttention 2. Without dropout its random state is not read."""
    state = torch.empty(2, dtype=torch.uint64, device=call.q.device)
    found: AttentionGradients = torch.ops.aten._flash_attention_backward(
        *call.heads, call.out, call.lse, None, None, *call.lengths, 0.0, call.causal, state, state,
        scale=nonzero(call.scale), **_sides(call.causal, call.window),
    )  # fmt: skip
    return found


def _custom_mask(causal: bool, window: int) -> Mapping[str, int | None]:
    return {
        "custom_mask_type": _CAUSAL_FROM_THE_END if causal else 0,
        "window_size": None if window < 0 else window + 1,
    }


def efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """xformers' memory-efficient attention. ``bias`` [batch, heads, q_len, kv_len] is added to the logits."""
    told = _custom_mask(causal, window)
    forward = torch.ops.aten._efficient_attention_forward
    out, lse, *_ = forward(
        q, k, v, bias, None, None, None, None, dropout_p=0.0, compute_log_sumexp=True, scale=scale, **told
    )
    return out, lse[:, :, : q.shape[1]]


def efficient_backward(call: GradientCall, bias: torch.Tensor | None) -> AttentionGradients:
    """The gradients by xformers' kernels. Rows that see no key, and the padding, get an lse of inf: weights of 0."""
    lse = call.lse.masked_fill(call.lse == -math.inf, math.inf)
    lse = torch.nn.functional.pad(lse, (0, -call.q.shape[1] % _EFFICIENT_ROWS), value=math.inf)
    seed = torch.zeros((), dtype=torch.int64, device=call.q.device)
    *found, _ = torch.ops.aten._efficient_attention_backward(
        *call.heads, bias, call.out, None, None, *call.lengths, lse, 0.0, seed, seed, bias_requires_grad=False,
        scale=call.scale, **_custom_mask(call.causal, call.window),
    )  # fmt: skip
    return tuple(found)


def _bhsd(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """cuDNN's attention. Its causal rows are aligned to the first key."""
    forward = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, lse, *_ = forward(*_bhsd(q, k, v), None, True, 0.0, causal, False, scale=scale)
    return out.transpose(1, 2), lse.view(lse.shape[:3])


def cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention on a CPU. Causal rows are aligned to the first key; one that sees no key has an lse of 0."""
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = forward(*_bhsd(q, k, v), 0.0, causal, attn_mask=bias, scale=scale)
    return out.transpose(1, 2), lse


def cpu_backward(call: GradientCall, bias: torch.Tensor | None) -> AttentionGradients:
    """The gradients on a CPU. Rows that see no key get an lse of 0, as its forward has it."""
    lse = call.lse.masked_fill(call.lse == -math.inf, 0.0)
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *_bhsd(*call.heads, call.out), lse, 0.0, call.causal, attn_mask=bias, scale=call.scale
    )
    return tuple(_bhsd(*found))

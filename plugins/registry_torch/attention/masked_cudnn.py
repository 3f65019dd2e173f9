"""cuDNN's fused attention with a mask, and its gradients, by torch's private operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from . import aten, reasons
from .cudnn_gradients import cudnn_gradients
from .gradient_layouts import with_rows_of_lse

_MOST = 128
"""The largest head_dim of forward and backward on every GPU."""
_NAME = "torch.sdpa_cudnn_masked"


_LOWEST = torch.finfo(torch.bfloat16).min
_LEAST = _LOWEST / 8
"""The least bias in bfloat16 of a key that is seen: logits are multiplied by log2(e), for which fp32 needs room below
it. Lower numbers of a mask are read as this, beside which a logit vanishes too."""
_HIDDEN = {torch.bfloat16: _LOWEST / 4, torch.float16: torch.finfo(torch.float16).min}
"""The bias of a key that is not seen, by dtype: cuDNN takes no -inf."""


def joined(mask: torch.Tensor, q_len: int, causal: bool) -> torch.Tensor:
    """The mask with the keys after a query's own hidden, if causal."""
    if not causal:
        return mask
    keys = mask.shape[-1]
    seen = torch.ones(q_len, keys, dtype=torch.bool, device=mask.device).tril_(keys - q_len)
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)


def bias_of_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the logits for a joined mask, row-major, of as many batches and heads as the mask."""
    hidden = _HIDDEN[dtype]
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, hidden)
    return mask.clamp(min=_LEAST).masked_fill_(mask == -math.inf, hidden).contiguous()


def _reasons(problem: Problem, device: Device) -> Iterator[str]:
    names = ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward")
    if lacking := aten.missing(*names):
        yield f"this torch lacks {', '.join(lacking)}"
    elif not torch.backends.cudnn.is_available():
        yield "this torch has no cuDNN"
    yield from reasons.capability_reasons(device, (8, 0))
    yield from reasons.dtype_reasons(problem, reasons.HALVES)
    if problem.mask == "none":
        yield "there is no mask: torch.sdpa_cudnn is for causal rows and whole ones"
    elif problem.kv_len % 8:
        yield f"the rows of a mask of kv_len={problem.kv_len} do not start at multiples of 16 bytes"
    if problem.mask == "additive" and problem.dtype == "float16":
        yield "cuDNN takes no -inf, and float16 has no other number below its lowest"
    yield from reasons.form_reasons(problem, mask=True)
    yield from reasons.layout_reasons(problem)
    if not problem.batch or not problem.q_len or not problem.kv_len:
        yield "there is no query or no key"
    if problem.head_dim > _MOST:
        yield f"head_dim={problem.head_dim} (limit {_MOST})"


class MaskedCudnnAttention(Implementation):
    """cuDNN's attention with a mask, bool or additive, which is added to the logits; causal rows are hidden by it too.

    Grouped heads; halves, additive masks in bfloat16. What such a mask holds below an eighth of the lowest number is
    read as the lowest: all such keys of a row weigh the same, and nothing beside any other.
    """

    op = "attention"
    name = _NAME
    returns_outputs = True
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """No mask, rows of a mask that are not aligned, other dtypes, long heads, caps and windows, old GPUs."""
        yield from _reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before Triton's from compute capability 9.0 on, for which it was made."""
        return 1.25 if device.capability >= (9, 0) else 0.4

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any size; cuDNN plans a new size at its first call."""
        forward = torch.ops.aten._scaled_dot_product_cudnn_attention

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            q, k, v, mask, causal, scale, *_ = arguments
            mask = joined(mask, q.shape[1], causal)
            heads = [x.transpose(1, 2) for x in (q, k, v)]
            out, lse, *_ = forward(*heads, bias_of_mask(mask, q.dtype), True, 0.0, False, False, scale=scale)
            lse = lse.view(lse.shape[:3])
            if mask.dtype != torch.bool:
                lse = lse.masked_fill(lse <= _LOWEST / 16, _LOWEST)
            return reasons.without_blind_rows(out.transpose(1, 2), lse, mask)

        return run


class MaskedCudnnAttentionBackward(Implementation):
    """cuDNN's gradients with a mask, as the forward pass reads it; halves. A row that sees no key adds nothing.

    The gradients of queries are summed up in any order, so that two runs may differ.
    """

    op = "attention_backward"
    name = _NAME
    returns_outputs = True
    any_size = True
    deterministic = False

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons of the forward pass, for the gradients."""
        yield from _reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """The preference of the forward pass."""
        return 1.25 if device.capability >= (9, 0) else 0.4

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any size; a gradient that is not needed is left out."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            call = with_rows_of_lse(aten.GradientCall(*arguments))
            made = zip(_gradients(call), (call.need_q, call.need_k, call.need_v), strict=True)
            return tuple([x.contiguous() if needed else x.new_empty(0) for x, needed in made])

        return run


def _gradients(call: aten.GradientCall) -> aten.AttentionGradients:
    """All three; a row that sees no key gets an lse of inf: weights of 0."""
    assert call.mask is not None
    bias = bias_of_mask(joined(call.mask, call.q.shape[1], call.causal), call.q.dtype)
    lse = call.lse if call.mask.dtype == torch.bool else call.lse.clamp(min=_LEAST)
    lse = lse.masked_fill(call.lse == -math.inf, math.inf)
    return cudnn_gradients(call._replace(lse=lse, causal=False), bias)

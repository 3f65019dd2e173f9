"""attention by two matrix products and a softmax, some rows at a time: any layout, device and dtype."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .rows import RowsOfAttention


def attend(values: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a call's values, in fp32 or wider until the output is rounded."""
    q, call = values[0], RowsOfAttention.of(*values)
    batch, rows, heads, width = q.shape
    out = q.new_empty((batch, rows, heads, width))
    lse = call.q.new_full((batch, heads, rows), -math.inf)
    if not call.k.shape[2]:
        return out.zero_(), lse
    for span in call.spans():
        logits, _ = call.logits(span)
        top = logits.amax(-1, keepdim=True)
        top.masked_fill_(top == -math.inf, 0.0)
        weights = logits.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True)
        found = (call.by_group(weights) @ call.v).view(batch, heads, -1, width)
        out[:, span] = found.div_(total.masked_fill(total == 0.0, 1.0)).transpose(1, 2)
        lse[:, :, span] = total.log_().add_(top)[..., 0]
    return out, lse


def gradients(values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The three gradients of a call's values, an empty tensor for one that is not needed."""
    grad_out, q, k, v, mask, out, lse, causal, scale, softcap, window, *needs = values
    call = RowsOfAttention.of(q, k, v, mask, causal, scale, softcap, window)
    upstream, given = (x.transpose(1, 2).to(call.q.dtype) for x in (grad_out, out))
    grad_q = torch.empty_like(call.q)
    grad_k, grad_v = torch.zeros_like(call.k), torch.zeros_like(call.v)
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    for span in call.spans():
        logits, slope = call.logits(span)
        weights, rows = logits.sub_(lse[:, :, span, None]).exp_(), upstream[:, :, span]
        if needs[2]:
            grad_v += call.by_group(weights).transpose(-1, -2) @ call.by_group(rows)
        if needs[0] or needs[1]:
            slopes = (call.by_group(rows) @ call.v.transpose(-1, -2)).view(weights.shape)
            slopes.sub_((rows * given[:, :, span]).sum(-1, keepdim=True)).mul_(weights).mul_(call.scale)
            if slope is not None:
                slopes.mul_(slope)
            grad_q[:, :, span] = (call.by_group(slopes) @ call.k).view(rows.shape)
            grad_k += call.by_group(slopes).transpose(-1, -2) @ call.by_group(call.q[:, :, span])
    made = zip((grad_q, grad_k, grad_v), needs, strict=True)
    return tuple([x.transpose(1, 2).to(q.dtype).contiguous() if needed else q.new_empty(0) for x, needed in made])


class NativeAttention(Native):
    """Products and a softmax in float32, a gigabyte of logits at a time."""

    op = "attention"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return attend(arguments)

        return run


class NativeAttentionBackward(Native):
    """Five products in float32, a gigabyte of logits at a time."""

    op = "attention_backward"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return gradients(arguments)

        return run

"""Attention of packed sequences by torch, one sequence after the other."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .native import attend, gradients


def _bounds(offsets: torch.Tensor, total: int) -> list[tuple[int, int]]:
    """First token and end of each sequence, within the tensor, after reading the offsets to the host."""
    ends = accumulate((min(max(offset, 0), total) for offset in offsets.tolist()), max)
    return list(pairwise(ends))


def attend_packed(values: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a call's values; tokens of no sequence see no key."""
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale, softcap, window = values
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(
        (q.shape[1], q.shape[0]), -math.inf, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device
    )
    found = zip(_bounds(cu_seqlens_q, q.shape[0]), _bounds(cu_seqlens_k, k.shape[0]), strict=True)
    for (begin, end), (first, last) in found:
        if end > begin and last > first:
            heads = q[None, begin:end], k[None, first:last], v[None, first:last]
            part, sums = attend((*heads, None, causal, scale, softcap, window))
            out[begin:end], lse[:, begin:end] = part[0], sums[0]
    return out, lse


def gradients_packed(values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The three gradients of a call's values, an empty tensor for one that is not needed."""
    grad_out, q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, *attributes = values
    needs = attributes[-3:]
    made = [
        torch.zeros(x.shape, dtype=x.dtype, device=x.device) if needed else x.new_empty(0)
        for x, needed in zip((q, k, v), needs, strict=True)
    ]
    found = zip(_bounds(cu_seqlens_q, q.shape[0]), _bounds(cu_seqlens_k, k.shape[0]), strict=True)
    for rows, keys in ((slice(*one), slice(*other)) for one, other in found):
        if rows.stop > rows.start and keys.stop > keys.start:
            heads = grad_out[None, rows], q[None, rows], k[None, keys], v[None, keys]
            parts = gradients((*heads, None, out[None, rows], lse[None, :, rows], *attributes))
            for whole, part, tokens, needed in zip(made, parts, (rows, keys, keys), needs, strict=True):
                if needed:
                    whole[tokens] = part[0]
    return tuple(made)


class NativeVarlen(Native):
    """Products and a softmax in float32 for each sequence. It waits for the offsets, which it reads on the host."""

    op = "attention_varlen"
    returns_outputs = True
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return attend_packed(arguments)

        return run


class NativeVarlenBackward(Native):
    """Five products in float32 for each sequence. It waits for the offsets, which it reads on the host."""

    op = "attention_varlen_backward"
    returns_outputs = True
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return gradients_packed(arguments)

        return run

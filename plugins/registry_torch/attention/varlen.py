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
from .native import attend


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

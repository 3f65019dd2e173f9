"""attention by torch.compile of its formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.problem import Problem

_MEMORY_PART = 1 / 8
"""The part of the device's memory that logits may take, of which some copies may live at once."""
_MOST_BYTES = 2**34
"""The most bytes of logits on any device."""


def attend_at_once(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp by two products in fp32 or wider. Heads of a group are rows of one product."""
    wide = torch.promote_types(q.dtype, torch.float32)
    (batch, rows, heads, width), (keys, kv_heads) = q.shape, k.shape[1:3]
    queries, given, values = (x.transpose(1, 2).to(wide) for x in (q, k, v))
    queries = queries * (width**-0.5 if scale is None else scale)
    logits = queries.reshape(batch, kv_heads, -1, width) @ given.transpose(-1, -2)
    logits = logits.view(batch, heads, rows, keys)
    if softcap > 0.0:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    if causal or window >= 0:
        logits = logits.masked_fill(hidden_keys(rows, keys, causal, window, q.device), -math.inf)
    top = logits.amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = (logits - top).exp()
    total = weights.sum(-1, keepdim=True)
    out = weights.view(batch, kv_heads, -1, keys) @ values
    out = out.view(batch, heads, rows, width) / total.masked_fill(total == 0.0, 1.0)
    return out.transpose(1, 2).to(q.dtype).contiguous(), (total.log() + top)[..., 0].contiguous()


def hidden_keys(rows: int, keys: int, causal: bool, window: int, device: torch.device) -> torch.Tensor:
    """True [rows, keys] where causality or a window of 0 or more hides a key."""
    own = torch.arange(rows, device=device)[:, None] + (keys - rows)
    after = torch.arange(keys, device=device)[None, :] - own
    hidden = after > (0 if causal else window)
    return hidden if window < 0 else hidden | (after < -window)


class CompiledAttention(InductorImplementation):
    """The two products, and what Inductor makes of the softmax between them. All logits are in memory."""

    op = "attention"
    name = "torch.compile"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """More logits than fit in memory, and no query or key."""
        yield from super().unsupported(problem, device)
        if not problem.batch or not problem.q_len or not problem.kv_len:
            yield "there is no query or no key"
        itemsize = torch.promote_types(problem.torch_dtype, torch.float32).itemsize
        logits = problem.batch * problem.heads * problem.q_len * problem.kv_len * itemsize
        most = min(_MOST_BYTES, _MEMORY_PART * device.memory_bytes)
        if logits > most:
            yield f"all logits have {logits / 2**30:.3g} GiB (limit {most / 2**30:.3g})"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the op's values in the schema's order."""
        return attend_at_once(*values)

"""attention_decode by two matrix products in float32, and what Inductor makes of them."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

DecodeValues = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None,
    torch.Tensor | None, float | None, float, int,
]  # fmt: skip
"""The op's values in the schema's order."""

_ADDED = {"kv_dtype": ("int8",)}


def contiguous_keys(cache: torch.Tensor, kv_lens: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
    """Keys or values ``[batch, kv_len, kv_heads, head_dim]``; of pages a copy. The table is read to each length."""
    if table is None:
        return cache
    size = cache.shape[1]
    begun = torch.arange(table.shape[1], device=cache.device) * size < kv_lens[:, None]
    places = torch.where(begun, table, 0)
    if cache.dtype.itemsize == 1:
        return cache.view(torch.uint8)[places].flatten(1, 2).view(cache.dtype)
    return cache[places].flatten(1, 2)


def visible(kv_lens: torch.Tensor, q_len: int, kv_len: int, window: int) -> torch.Tensor:
    """Whether each token sees a key, bool ``[batch, q_len, kv_len]``."""
    device = kv_lens.device
    behind = (kv_lens[:, None] - q_len + torch.arange(q_len, device=device))[..., None]
    behind = behind - torch.arange(kv_len, device=device)
    return behind >= 0 if window < 0 else (behind >= 0) & (behind <= window)


def by_products(call: DecodeValues) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp. The heads of a group and their tokens are rows of one product: nothing is expanded."""
    q, k_cache, v_cache, kv_lens, table, k_scale, v_scale, scale, softcap, window = call
    wide = torch.promote_types(q.dtype, torch.float32)
    batch, q_len, heads, head_dim = q.shape
    keys, values = (contiguous_keys(cache, kv_lens, table).transpose(1, 2).to(wide) for cache in (k_cache, v_cache))
    kv_heads, kv_len = keys.shape[1:3]
    factor = torch.full((), head_dim**-0.5 if scale is None else scale, dtype=wide, device=q.device)
    rows = (q.to(wide) * (factor if k_scale is None else factor * k_scale)).transpose(1, 2)
    logits = rows.reshape(batch, kv_heads, -1, head_dim) @ keys.transpose(-1, -2)
    if softcap > 0.0:
        logits = torch.tanh(logits / softcap) * softcap
    seen = visible(kv_lens, q_len, kv_len, window)[:, None, None]
    logits = logits.view(batch, kv_heads, -1, q_len, kv_len).masked_fill(~seen, -math.inf)
    lse = logits.logsumexp(-1)
    weights = (logits - lse[..., None]).exp().masked_fill(~seen, 0.0)
    # zero times the NaN of a slot that nobody has written would be NaN
    values = values.masked_fill(~seen.any(-2).transpose(-1, -2).view(batch, 1, kv_len, 1), 0.0)
    out = weights.view(batch, kv_heads, -1, kv_len) @ values
    out = (out if v_scale is None else out * v_scale).view(batch, heads, q_len, head_dim).transpose(1, 2)
    return out.to(q.dtype).contiguous(), lse.flatten(1, 2)


class AttentionDecode(Native):
    """Keys and values in float32, from whatever pages, two products of torch and a softmax between them."""

    op = "attention_decode"
    returns_outputs = True
    added = _ADDED

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return by_products(arguments)

        return run


class CompiledAttentionDecode(InductorImplementation):
    """The two products; Inductor fuses what is between them."""

    op = "attention_decode"
    name = "torch.compile"
    added = _ADDED

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the op's values in the schema's order."""
        return by_products(values)

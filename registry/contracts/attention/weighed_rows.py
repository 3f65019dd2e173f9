"""Queries against the keys of a cache: which keys a token sees, their weights, and how much roundings change them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class WeighedRows(NamedTuple):
    """Weights [batch, kv_heads, group, q_len, kv_len] of the values [batch, kv_heads, 1, kv_len, head_dim].

    ``seen`` tells where a token sees a key; ``lse`` has the weights' shape without the last dimension. Values of keys
    that no token sees are 0.
    """

    weights: torch.Tensor
    values: torch.Tensor
    seen: torch.Tensor
    lse: torch.Tensor


def weighed_rows(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    scale: float | None,
    softcap: float,
    window: int,
) -> WeighedRows:
    """Weights and values of a call, in float32, of float64 in float64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (
        gathered(cache, kv_lens, block_table).to(wide) * (1.0 if by is None else by.to(wide))
        for cache, by in ((k_cache, k_scale), (v_cache, v_scale))
    )
    seen = seen_keys(kv_lens, q.shape[1], keys.shape[1], window)
    group = q.shape[2] // keys.shape[2]
    # [batch, kv_heads, group, q_len, head_dim] and [batch, kv_heads, 1, kv_len, head_dim]
    queries = q.to(wide).unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4)
    keys, values = (each.transpose(1, 2).unsqueeze(2) for each in (keys, values))
    logits = of_groups(queries, keys.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0.0:
        logits = softcap * torch.tanh(logits / softcap)
    seen = seen[:, None, None]
    logits = logits.masked_fill(~seen, -math.inf)
    lse = logits.logsumexp(-1)
    weights = (logits - lse.unsqueeze(-1)).exp().masked_fill(~seen, 0.0)
    return WeighedRows(weights, values.masked_fill(~seen.any(-2).unsqueeze(-1), 0.0), seen, lse)


def gathered(cache: torch.Tensor, kv_lens: torch.Tensor, block_table: torch.Tensor | None) -> torch.Tensor:
    """Keys or values ``[batch, kv_len, kv_heads, head_dim]``: the cache, or each sequence's pages one after another.

    For pages that a sequence has not begun, the table is not read: page 0 takes their place.
    """
    if block_table is None:
        return cache
    page = cache.shape[1]
    begun = torch.arange(block_table.shape[1], device=cache.device) * page < kv_lens[:, None]
    places = torch.where(begun, block_table, 0).long()
    if cache.dtype.itemsize == 1:
        return cache.view(torch.uint8)[places].flatten(1, 2).view(cache.dtype)
    return cache[places].flatten(1, 2)


def seen_keys(kv_lens: torch.Tensor, q_len: int, kv_len: int, window: int) -> torch.Tensor:
    """Whether each token sees a key, bool ``[batch, q_len, kv_len]``."""
    key = torch.arange(kv_len, device=kv_lens.device)
    place = (kv_lens[:, None] - q_len + torch.arange(q_len, device=kv_lens.device))[:, :, None]
    seen = key <= place
    return seen if window < 0 else seen & (key >= place - window)


def logit_errors(values: Mapping[str, Any], product: float | None = None) -> torch.Tensor:
    """Roundings of fp32 in each row's logits ``[batch, heads, q_len]``: an absolute error in units of 2**-24.

    ``values``: attention_decode's arguments by name.

    A product of two vectors errs by about ``sqrt(head_dim) / 2`` roundings of the sum of magnitudes, its scaling by
    three; a cap adds those of a hyperbolic tangent near 1. ``product`` is a product's roundings where they are others.
    """
    given, head_dim = values["scale"], values["q"].shape[-1]
    product = math.sqrt(head_dim) / 2 if product is None else product
    scale = head_dim**-0.5 if given is None else abs(given)
    largest = _sums_of_magnitudes(values).nan_to_num(0.0, 0.0, 0.0) * scale
    errors: torch.Tensor = largest * (3.0 + product) + 8.0 * values["softcap"]
    return errors


def _sums_of_magnitudes(values: Mapping[str, Any]) -> torch.Tensor:
    """The largest ``abs(q) @ abs(k)`` of the keys that each row sees, float64 ``[batch, heads, q_len]``."""
    q, lengths = values["q"].double().abs(), values["kv_lens"]
    keys = gathered(values["k_cache"], lengths, values["block_table"]).double().abs()
    if values["k_scale"] is not None:
        keys = keys * values["k_scale"].double().abs()
    seen = seen_keys(lengths, q.shape[1], keys.shape[1], values["window"])[:, None, None]
    queries = q.unflatten(2, (keys.shape[2], -1)).permute(0, 2, 3, 1, 4)
    sums = of_groups(queries, keys.permute(0, 2, 3, 1).unsqueeze(2))
    largest: torch.Tensor = sums.masked_fill(~seen, 0.0).amax(-1).flatten(1, 2)
    return largest


def weighted_means(weights: torch.Tensor, rows: WeighedRows) -> torch.Tensor:
    """Sums of the values by weights, [batch, q_len, heads, head_dim], 0 for NaN and infinity."""
    return of_groups(weights, rows.values).permute(0, 3, 1, 2, 4).flatten(2, 3).nan_to_num_(0.0, 0.0, 0.0)


def of_groups(rows: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """``rows @ shared``, of [batch, kv_heads, group, q_len, n] and [batch, kv_heads, 1, n, m].

    The rows of a group are those of one product: broadcasting would copy ``shared`` for each head of the group.
    """
    product = rows.flatten(2, 3) @ shared.squeeze(2)
    return product.view(*rows.shape[:4], shared.shape[-1])

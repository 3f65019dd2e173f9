"""FlashInfer's append to a paged cache, which knows sequences and not slots, nor tokens that are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from registry import Device, Problem

from .adapting import compiled_reasons, flashinfer, library

_HEAD_DIMS = (64, 128, 256, 512)


def append_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run a kv_cache_append."""
    yield from compiled_reasons(problem, device)
    if problem.kv_dtype != "auto":
        yield f"its cache has the dtype of the keys, not {problem.kv_dtype}"
    if problem.head_dim not in _HEAD_DIMS:
        yield f"head_dim is {problem.head_dim}, expected {', '.join(map(str, _HEAD_DIMS))}"


def kv_cache_append(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    _k_scale: None,
    _v_scale: None,
) -> None:
    """Append to one sequence that has every page of the cache in order: there a slot is a position.

    A token that is skipped writes what another one writes, or, where all are, what is in slot 0.
    """
    tokens = slot_mapping.shape[0]
    if not tokens:
        return
    kept = slot_mapping >= 0
    stand_in = torch.where(kept, torch.arange(tokens, device=key.device), kept.to(torch.int32).argmax())
    positions = slot_mapping[stand_in].clamp_min(0).to(torch.int32)
    written = kept.any()
    rows = [torch.where(written, x[stand_in], cache[0, 0]) for x, cache in ((key, key_cache), (value, value_cache))]
    pages, size = key_cache.shape[:2]
    numbers = torch.arange(pages, dtype=torch.int32, device=key.device)
    library().append_paged_kv_cache(
        *rows,
        torch.zeros_like(positions),
        positions,
        (key_cache, value_cache),
        numbers,
        torch.arange(2, dtype=torch.int32, device=key.device) * pages,
        torch.full((1,), size, dtype=torch.int32, device=key.device),
    )


KV_CACHE_APPEND = flashinfer("kv_cache_append", "kv_cache_append", kv_cache_append, append_reasons, into=True)

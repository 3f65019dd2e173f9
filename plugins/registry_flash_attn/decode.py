"""FlashAttention from a cache in rows or pages, whose lengths stay on the device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from registry import Device, Problem

from .generations import FA2, FA3, FA4, Generation, flash_attn, general_reasons, library, split_reasons, window_of

_PAGE_OF_FA2 = 256


def decode_reasons(generation: Generation, problem: Problem, device: Device) -> Iterator[str]:
    """Why a generation cannot run an ``attention_decode``."""
    yield from general_reasons(generation, problem, device)
    if problem.kv_dtype != "auto":
        yield f"its cache has the dtype of q, not {problem.kv_dtype}"
    if generation is FA2 and problem.page and problem.page % _PAGE_OF_FA2:
        yield f"a page has {problem.page} slots, expected a multiple of {_PAGE_OF_FA2}"
    if generation is FA4 and problem.page and device.capability[0] in (8, 12):
        yield f"it takes no pages on {device.architecture}"


def split_decode_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why the fourth generation cannot run an ``attention_decode`` with keys that it splits over programs."""
    yield from decode_reasons(FA4, problem, device)
    yield from split_reasons(device)


def decode_fa4(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    splits: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor | None,
    _k_scale: None,
    _v_scale: None,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fourth generation's ``flash_attn_varlen_func``; it chooses how it splits keys where ``splits`` is 0."""
    found: tuple[torch.Tensor, torch.Tensor] = library(FA4).flash_attn_varlen_func(
        q, k_cache, v_cache, seqused_k=kv_lens, page_table=block_table, softmax_scale=scale, causal=True,
        window_size=window_of(FA4, window, True), softcap=softcap, num_splits=splits, return_lse=True,
    )  # fmt: skip
    return found


def decode_earlier(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    generation: Generation,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor | None,
    _k_scale: None,
    _v_scale: None,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flash_attn_with_kvcache`` of the second and the third generation."""
    table: dict[str, Any] = {"page_table" if generation is FA3 else "block_table": block_table}
    out, lse, *_ = library(generation).flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=kv_lens, softmax_scale=scale, causal=True,
        window_size=window_of(generation, window, True), softcap=softcap, return_softmax_lse=True, **table,
    )  # fmt: skip
    return out, lse


IMPLEMENTATIONS = (
    flash_attn("attention_decode", FA4, partial(decode_fa4, 1), partial(decode_reasons, FA4)),
    flash_attn("attention_decode", FA4, partial(decode_fa4, 0), split_decode_reasons, variant="_split"),
    flash_attn("attention_decode", FA3, partial(decode_earlier, FA3), partial(decode_reasons, FA3)),
    flash_attn("attention_decode", FA2, partial(decode_earlier, FA2), partial(decode_reasons, FA2)),
)

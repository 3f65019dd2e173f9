"""FlashInfer's decoding of latent attention, planned at each call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from registry import Device, Problem

from .adapting import compiled_reasons, flashinfer, library, stream_of, workspace
from .paging import PlannedPages

_LATENT, _ROTATED = 512, 64
"""Elements of the latent vector and of the rotated part that its kernels are written for: DeepSeek's."""

_LOCK = threading.Lock()


def mla_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run an ``mla_decode``."""
    yield from compiled_reasons(problem, device)
    if (problem.kv_lora_rank, problem.rope_dim) != (_LATENT, _ROTATED):
        yield (
            f"kv_lora_rank is {problem.kv_lora_rank} and rope_dim {problem.rope_dim}, expected {_LATENT} and {_ROTATED}"
        )


def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    kv_lora_rank: int,
    scale: float,
    block_table: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``BatchMLAPagedAttentionWrapper``; without a table a sequence's room is one page."""
    (batch, heads, width), page = q.shape, kv_cache.shape[1]
    pages = PlannedPages.of(kv_lens, page, block_table)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    with _LOCK:
        wrapper = _wrapper(q.device, stream_of(q.device))
        wrapper.plan(
            metadata=library().mla.MLAPlanMetadata.csr(starts, pages.ends, pages.numbers, pages.lengths),
            num_heads=heads, head_dim_ckv=kv_lora_rank, head_dim_kpe=width - kv_lora_rank, page_size=page,
            causal=False, sm_scale=scale, q_data_type=q.dtype, kv_data_type=kv_cache.dtype, query_layout="packed",
            kv_cache_layout="packed", lse_mode="basee",
        )  # fmt: skip
        found: tuple[torch.Tensor, torch.Tensor] = wrapper.run(
            query=q, kv_cache=kv_cache, return_lse=True, return_lse_base_on_e=True
        )
    return found


@lru_cache(maxsize=4)
def _wrapper(device: torch.device, stream: int) -> Any:
    """A wrapper for a stream, which is planned anew at each call."""
    return library().BatchMLAPagedAttentionWrapper(workspace(device, stream))


MLA_DECODE = flashinfer("mla_decode", "mla_decode", mla_decode, mla_reasons, capturable=False)

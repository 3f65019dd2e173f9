"""FlashInfer's decoding from a cache, planned at each call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import torch

from registry import Device, Problem

from .adapting import compiled_reasons, flashinfer, library, stream_of, workspace
from .lse import natural
from .paging import PlannedPages
from .prefill import HEAD_DIMS

_LOCK = threading.Lock()


def decode_reasons(tensor_cores: bool, problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run an ``attention_decode``."""
    yield from compiled_reasons(problem, device)
    if problem.head_dim not in HEAD_DIMS:
        yield f"head_dim is {problem.head_dim}, expected {', '.join(map(str, HEAD_DIMS))}"
    if problem.q_len > 1 and not tensor_cores:
        yield f"q_len is {problem.q_len}, and on CUDA cores it decodes one token"


def attention_decode(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    tensor_cores: bool,
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """``BatchDecodeWithPagedKVCacheWrapper``; without a table a sequence's room is one page."""
    (batch, q_len, heads, width), (_, page, kv_heads, _) = q.shape, k_cache.shape
    pages = PlannedPages.of(kv_lens, page, block_table)
    scales = {"k_scale": _number(k_scale), "v_scale": _number(v_scale)}
    with _LOCK:
        wrapper = _wrapper(q.device, stream_of(q.device), tensor_cores)
        wrapper.plan(
            pages.ends, pages.numbers, pages.last, heads, kv_heads, width, page, window_left=window,
            logits_soft_cap=softcap or None, sm_scale=scale, q_data_type=q.dtype,
            kv_data_type=k_cache.dtype, q_len_per_req=q_len,
        )  # fmt: skip
        out, lse = wrapper.run(q.flatten(0, 1), (k_cache, v_cache), return_lse=True, **scales)
    return out.view_as(q), natural(lse, batch)


def _number(scale: torch.Tensor | None) -> float | None:
    return None if scale is None else float(scale.item())


@lru_cache(maxsize=4)
def _wrapper(device: torch.device, stream: int, tensor_cores: bool) -> Any:
    """A wrapper for a stream, which is planned anew at each call."""
    return library().BatchDecodeWithPagedKVCacheWrapper(workspace(device, stream), "NHD", use_tensor_cores=tensor_cores)


CUDA_CORES = flashinfer(
    "cuda_cores",
    "attention_decode",
    partial(attention_decode, False),
    partial(decode_reasons, False),
    capturable=False,
)
TENSOR_CORES = flashinfer(
    "tensor_cores",
    "attention_decode",
    partial(attention_decode, True),
    partial(decode_reasons, True),
    capturable=False,
)

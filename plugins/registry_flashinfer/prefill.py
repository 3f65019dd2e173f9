"""FlashInfer's attention of whole prompts: of one, which it needs no plan for, and of a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from registry import Device, Problem

from .adapting import compiled_reasons, flashinfer, library, stream_of, workspace
from .lse import natural

HEAD_DIMS = (64, 128, 256)

_LOCK = threading.Lock()

_Shape = tuple[Any, ...]


def prefill_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run an ``attention``."""
    yield from compiled_reasons(problem, device)
    if problem.mask != "none":
        yield f"it is given no {problem.mask} mask: it would pack one at each call"
    if problem.head_dim not in HEAD_DIMS:
        yield f"head_dim is {problem.head_dim}, expected {', '.join(map(str, HEAD_DIMS))}"
    if problem.span and not problem.causal:
        yield "its window has no end after a query's own key, and the problem is not causal"


def single_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run an ``attention`` as that of one prompt."""
    yield from prefill_reasons(problem, device)
    if problem.batch != 1:
        yield f"batch is {problem.batch}, expected 1"


def batch_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run an ``attention`` as that of a batch."""
    yield from prefill_reasons(problem, device)
    if problem.batch == 1:
        yield "batch is 1, which flashinfer.single serves without a plan"


def attention_single(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _mask: None,
    causal: bool,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``single_prefill_with_kv_cache``."""
    out, lse = library().single_prefill_with_kv_cache(
        q[0], k[0], v[0], causal=causal, sm_scale=scale, window_left=window, logits_soft_cap=softcap or None,
        return_lse=True,
    )  # fmt: skip
    return out[None], natural(lse, 1)


def attention_batch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _mask: None,
    causal: bool,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``BatchPrefillWithRaggedKVCacheWrapper``, planned once for a shape on a stream: it waits for no lengths."""
    stream = stream_of(q.device)
    how = (causal, scale, softcap, window)
    with _LOCK:
        wrapper = _planned(q.device, stream, tuple(q.shape), tuple(k.shape), q.dtype, how)
        out, lse = wrapper.run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), return_lse=True)
    return out.view_as(q), natural(lse, q.shape[0])


@lru_cache(maxsize=8)
def _planned(
    device: torch.device, stream: int, shape: _Shape, keys: _Shape, dtype: torch.dtype, how: tuple[Any, ...]
) -> Any:
    """A wrapper with the plan of a shape, for a stream."""
    (batch, q_len, heads, width), (_, kv_len, kv_heads, _) = shape, keys
    causal, scale, softcap, window = how
    wrapper = library().BatchPrefillWithRaggedKVCacheWrapper(workspace(device, stream), "NHD")
    ends = torch.arange(batch + 1, dtype=torch.int32)
    wrapper.plan(
        ends * q_len, ends * kv_len, heads, kv_heads, width, causal=causal, window_left=window,
        logits_soft_cap=softcap or None, sm_scale=scale, q_data_type=dtype, kv_data_type=dtype,
    )  # fmt: skip
    return wrapper


SINGLE = flashinfer("single", "attention", attention_single, single_reasons)
# a plan is made for a shape, and copied to the device, which a graph's capture forbids
BATCH = flashinfer("batch", "attention", attention_batch, batch_reasons, any_size=False, capturable=False)

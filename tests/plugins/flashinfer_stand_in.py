"""A stand-in for FlashInfer, which needs a GPU: its functions with their signatures, by torch.

Its log-sum-exps are to the base 2 with the heads last, a plan has its lengths on the CPU, and a position that is
negative is an error, where the kernel writes anywhere.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from registry.contracts.attention.attention import attention_reference
from registry.contracts.attention.mla_decode import mla_decode_reference
from registry.contracts.decoder.rotary_embedding import rotary_embedding_reference
from registry.contracts.norm import rms_norm_reference


def rmsnorm(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    assert out is not None
    assert input.dim() == out.dim() == 2
    return out.copy_(rms_norm_reference(input, weight, eps))


def fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    assert weight.dtype == input.dtype
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight.float())


def gemma_fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * (1.0 + weight.float()))


def layernorm(input: torch.Tensor, gemma: torch.Tensor, beta: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:  # noqa: A002
    assert (input.dtype, gemma.dtype, beta.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    return torch.nn.functional.layer_norm(input.float(), input.shape[-1:], gemma, beta, eps).to(input.dtype)


def silu_and_mul(
    input: torch.Tensor,  # noqa: A002
    out: torch.Tensor,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    gate, up = input.float().chunk(2, -1)
    return out.copy_(torch.nn.functional.silu(gate) * up)


def gelu_and_mul(
    input: torch.Tensor,  # noqa: A002
    out: torch.Tensor,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    gate, up = input.float().chunk(2, -1)
    return out.copy_(torch.nn.functional.gelu(gate) * up)


def gelu_tanh_and_mul(
    input: torch.Tensor,  # noqa: A002
    out: torch.Tensor,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    gate, up = input.float().chunk(2, -1)
    return out.copy_(torch.nn.functional.gelu(gate, approximate="tanh") * up)


def apply_rope_with_cos_sin_cache_inplace(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    assert cos_sin_cache.dtype == torch.float32
    assert positions.dim() == 1
    rotary_embedding_reference(positions, query, key, head_size, cos_sin_cache, is_neox)


def append_paged_kv_cache(  # noqa: PLR0917
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    numbers = (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len)
    assert {each.dtype for each in numbers} == {torch.int32}
    assert kv_layout == "NHD"
    assert int(positions.min()) >= 0
    size = paged_kv_cache[0].shape[1]
    lengths = (kv_indptr[1:] - kv_indptr[:-1] - 1) * size + kv_last_page_len
    assert bool((positions < lengths[batch_indices.long()]).all())
    pages = kv_indices[(kv_indptr[batch_indices.long()] + positions // size).long()].long()
    for cache, rows in zip(paged_kv_cache, (append_key, append_value), strict=True):
        cache[pages, (positions % size).long()] = rows


def single_prefill_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert return_lse
    assert logits_soft_cap is None or logits_soft_cap > 0.0
    out, lse = attention_reference(
        q[None], k[None], v[None], None, causal, sm_scale, logits_soft_cap or 0.0, window_left
    )
    return out[0], lse[0].t() / math.log(2.0)


class BatchPrefillWithRaggedKVCacheWrapper:
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        *,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        assert qo_indptr.dtype == kv_indptr.dtype == torch.int32
        self.ends = list(zip(qo_indptr.tolist(), kv_indptr.tolist(), strict=True))
        self.sizes = (num_qo_heads, num_kv_heads, head_dim_qk, q_data_type, kv_data_type)
        self.how: dict[str, Any] = {
            "causal": causal, "window_left": window_left, "logits_soft_cap": logits_soft_cap, "sm_scale": sm_scale,
        }  # fmt: skip

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.sizes == (q.shape[1], k.shape[1], q.shape[2], q.dtype, k.dtype)
        parts = []
        for (begin, first), (end, last) in itertools.pairwise(self.ends):
            rows, keys = slice(begin, end), slice(first, last)
            parts.append(single_prefill_with_kv_cache(q[rows], k[keys], v[keys], return_lse=return_lse, **self.how))
        outs, lses = zip(*parts, strict=True)
        return torch.cat(outs), torch.cat(lses)


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(
        self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", *, use_tensor_cores: bool = False
    ) -> None:
        self.tensor_cores = use_tensor_cores

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
        q_len_per_req: int = 1,
    ) -> None:
        assert {each.dtype for each in (indptr, indices, last_page_len)} == {torch.int32}
        assert self.tensor_cores or q_len_per_req == 1
        assert int(indptr[-1]) == len(indices)
        ends = indptr.tolist()
        self.pages = [indices[begin:end].long() for begin, end in itertools.pairwise(ends)]
        self.last, self.page, self.q_len = last_page_len.tolist(), page_size, q_len_per_req
        self.how = (sm_scale, logits_soft_cap or 0.0, window_left)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = []
        for place, (pages, last) in enumerate(zip(self.pages, self.last, strict=True)):
            length = max(len(pages) - 1, 0) * self.page + last
            rows = q[place * self.q_len : (place + 1) * self.q_len]
            keys, values = (
                cache[pages].float().flatten(0, 1)[:length] * (1.0 if by is None else by)
                for cache, by in zip(paged_kv_cache, (k_scale, v_scale), strict=True)
            )
            out, lse = attention_reference(rows[None].float(), keys[None], values[None], None, True, *self.how)
            parts.append((out[0].to(q.dtype), lse[0].t() / math.log(2.0)))
        outs, lses = zip(*parts, strict=True)
        return torch.cat(outs), torch.cat(lses)


class MLAPlanMetadata(NamedTuple):
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_len_arr: torch.Tensor

    @classmethod
    def csr(
        cls, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_len_arr: torch.Tensor
    ) -> MLAPlanMetadata:
        return cls(qo_indptr, kv_indptr, kv_indices, kv_len_arr)


class BatchMLAPagedAttentionWrapper:
    def __init__(self, float_workspace_buffer: torch.Tensor) -> None:
        pass

    def plan(
        self, *, metadata: MLAPlanMetadata, num_heads: int, head_dim_ckv: int, head_dim_kpe: int, page_size: int,
        causal: bool, sm_scale: float, q_data_type: torch.dtype, kv_data_type: torch.dtype,
        query_layout: str, kv_cache_layout: str, lse_mode: str,
    ) -> None:  # fmt: skip
        assert {each.dtype for each in metadata} == {torch.int32}
        assert (query_layout, kv_cache_layout, lse_mode, causal) == ("packed", "packed", "basee", False)
        assert metadata.qo_indptr.tolist() == list(range(len(metadata.kv_len_arr) + 1))
        ends = metadata.kv_indptr.tolist()
        self.pages = [metadata.kv_indices[begin:end].long() for begin, end in itertools.pairwise(ends)]
        self.lengths, self.sizes = metadata.kv_len_arr.tolist(), (num_heads, head_dim_ckv + head_dim_kpe, page_size)
        self.rank, self.scale = head_dim_ckv, sm_scale

    def run(
        self, *, query: torch.Tensor, kv_cache: torch.Tensor, return_lse: bool, return_lse_base_on_e: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert return_lse
        assert return_lse_base_on_e
        assert self.sizes == (query.shape[1], query.shape[2], kv_cache.shape[1])
        parts = []
        for row, pages, length in zip(query, self.pages, self.lengths, strict=True):
            assert -(-length // kv_cache.shape[1]) == len(pages)
            keys = kv_cache[pages].flatten(0, 1)[None, :length]
            lengths = torch.tensor([length], dtype=torch.int32)
            parts.append(mla_decode_reference(row[None], keys, lengths, self.rank, self.scale))
        outs, lses = zip(*parts, strict=True)
        return torch.cat(outs), torch.cat(lses)


mla = SimpleNamespace(MLAPlanMetadata=MLAPlanMetadata)

"""FlashInfer (Apache-2.0): attention, decoding from a cache, and the small ops of a decoder.

An adapter: the library is installed by ``pip install 'kernel-registry[flashinfer]'``, and all is unsupported without
it. Most of its kernels are compiled by nvcc at their first call, which takes seconds to minutes, unless
flashinfer-jit-cache brings them. Its sampling has no op here.
"""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


@registry.implements("rms_norm")
def rms_norm_implementations() -> list[Implementation]:
    """``rmsnorm``."""
    from .norms import RMS_NORM

    return [RMS_NORM]


@registry.implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> list[Implementation]:
    """``fused_add_rmsnorm`` and ``gemma_fused_add_rmsnorm``."""
    from .norms import FUSED_ADD_RMS_NORM

    return [FUSED_ADD_RMS_NORM]


@registry.implements("layer_norm")
def layer_norm_implementations() -> list[Implementation]:
    """``layernorm`` with weight and bias in float32."""
    from .norms import FlashInferLayerNorm

    return [FlashInferLayerNorm()]


@registry.implements("silu_and_mul")
def silu_and_mul_implementations() -> list[Implementation]:
    """``silu_and_mul``."""
    from .gated import SILU_AND_MUL

    return [SILU_AND_MUL]


@registry.implements("gelu_and_mul")
def gelu_and_mul_implementations() -> list[Implementation]:
    """``gelu_and_mul`` and ``gelu_tanh_and_mul``."""
    from .gated import GELU_AND_MUL

    return [GELU_AND_MUL]


@registry.implements("rotary_embedding")
def rotary_embedding_implementations() -> list[Implementation]:
    """``apply_rope_with_cos_sin_cache_inplace`` with the table in float32."""
    from .rotary import FlashInferRotary

    return [FlashInferRotary()]


@registry.implements("kv_cache_append")
def kv_cache_append_implementations() -> list[Implementation]:
    """``append_paged_kv_cache`` to one sequence that has all pages."""
    from .append import KV_CACHE_APPEND

    return [KV_CACHE_APPEND]


@registry.implements("attention")
def attention_implementations() -> list[Implementation]:
    """``single_prefill_with_kv_cache`` of one sequence, and the wrapper for ragged batches."""
    from .prefill import BATCH, SINGLE

    return [SINGLE, BATCH]


@registry.implements("attention_decode")
def attention_decode_implementations() -> list[Implementation]:
    """``BatchDecodeWithPagedKVCacheWrapper`` on CUDA cores and on tensor cores, planned at each call."""
    from .decode import CUDA_CORES, TENSOR_CORES

    return [CUDA_CORES, TENSOR_CORES]


@registry.implements("mla_decode")
def mla_decode_implementations() -> list[Implementation]:
    """``BatchMLAPagedAttentionWrapper``, planned at each call."""
    from .mla import MLA_DECODE

    return [MLA_DECODE]

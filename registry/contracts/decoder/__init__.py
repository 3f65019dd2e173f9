"""Ops of a decoder besides matrix products: activations, norms, embeddings, the cache of keys and values."""

from __future__ import annotations

from .apply_rotary import APPLY_ROTARY, APPLY_ROTARY_BACKWARD
from .embedding import EMBEDDING
from .embedding_backward import EMBEDDING_BACKWARD
from .fused_add_rms_norm import FUSED_ADD_RMS_NORM
from .gated import GELU_AND_MUL, GELU_AND_MUL_BACKWARD, SILU_AND_MUL, SILU_AND_MUL_BACKWARD
from .kv_cache_append import KV_CACHE_APPEND
from .layer_norm import LAYER_NORM
from .layer_norm_backward import LAYER_NORM_BACKWARD
from .rotary_embedding import ROTARY_EMBEDDING
from .rotary_kv_append import ROTARY_KV_APPEND

__all__ = [
    "APPLY_ROTARY",
    "APPLY_ROTARY_BACKWARD",
    "EMBEDDING",
    "EMBEDDING_BACKWARD",
    "FUSED_ADD_RMS_NORM",
    "GELU_AND_MUL",
    "GELU_AND_MUL_BACKWARD",
    "KV_CACHE_APPEND",
    "LAYER_NORM",
    "LAYER_NORM_BACKWARD",
    "ROTARY_EMBEDDING",
    "ROTARY_KV_APPEND",
    "SILU_AND_MUL",
    "SILU_AND_MUL_BACKWARD",
]

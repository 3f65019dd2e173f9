"""C++ kernels for the CPU, compiled by the system's compiler. Found like any third party's: through its entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from registry import implements

if TYPE_CHECKING:
    from registry.implementation import Implementation

KERNEL_REGISTRY_API = 1


@implements("vector_add")
def vector_add_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .elementwise import CppVectorAdd

    return [CppVectorAdd()]


@implements("square")
def square_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .elementwise import CppSquare

    return [CppSquare()]


@implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    """One implementation, for both approximations."""
    from .elementwise import CppGelu

    return [CppGelu()]


@implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """A form for many rows and one for few long ones."""
    from .rows import SoftmaxColumns, SoftmaxRows

    return [SoftmaxRows(), SoftmaxColumns()]


@implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .rows import CppRmsNorm

    return [CppRmsNorm()]


@implements("gemm_int4")
def gemm_int4_implementations() -> Iterable[Implementation]:
    """A form for one row of activations, one for up to 64, and those of bfloat16."""
    from .gemm_int4 import CppGemmInt4, CppGemvInt4

    return [CppGemvInt4(), CppGemmInt4(), *_bfloat16_products("gemm_int4", 4)]


def _packed_gemm(op: str, bits: int, nf4: bool = False) -> Iterable[Implementation]:
    from .packed_gemm import CppGemm, CppGemv

    return [CppGemv(op, bits, nf4), CppGemm(op, bits, nf4), *_bfloat16_products(op, bits, nf4)]


def _bfloat16_products(op: str, bits: int, nf4: bool = False) -> Iterable[Implementation]:
    from .weight_products import AmxWeightProduct, DotWeightProduct, PairedWeight

    weight = PairedWeight(op, bits, nf4)
    return [AmxWeightProduct(weight), DotWeightProduct(weight)]


def _int8_products(op: str, bits: int) -> Iterable[Implementation]:
    from .int8_products import AmxInt8Product, DotInt8Product, Int8Weight

    weight = Int8Weight(op, bits)
    return [AmxInt8Product(weight), DotInt8Product(weight)]


@implements("gemm_int8")
def gemm_int8_implementations() -> Iterable[Implementation]:
    """A form for one row of activations, one for up to 64, and those of bfloat16."""
    return _packed_gemm("gemm_int8", 8)


@implements("gemm_int2")
def gemm_int2_implementations() -> Iterable[Implementation]:
    """A form for one row of activations, one for up to 64, and those of bfloat16."""
    return _packed_gemm("gemm_int2", 2)


@implements("gemm_int1")
def gemm_int1_implementations() -> Iterable[Implementation]:
    """A form for one row of activations, one for up to 64, and those of bfloat16."""
    return _packed_gemm("gemm_int1", 1)


@implements("gemm_w4a16")
def gemm_w4a16_implementations() -> Iterable[Implementation]:
    """A form for one row of activations, one for up to 64, and those of bfloat16."""
    return _packed_gemm("gemm_w4a16", 4)


@implements("gemm_nf4")
def gemm_nf4_implementations() -> Iterable[Implementation]:
    """A form for one row of activations, one for up to 64, and those of bfloat16."""
    return _packed_gemm("gemm_nf4", 4, nf4=True)


@implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .decoder import CppFusedAddRmsNorm

    return [CppFusedAddRmsNorm()]


@implements("rotary_embedding")
def rotary_embedding_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .rotary_embedding import CppRotaryEmbedding

    return [CppRotaryEmbedding()]


@implements("apply_rotary")
def apply_rotary_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .apply_rotary import CppApplyRotary

    return [CppApplyRotary()]


@implements("apply_rotary_backward")
def apply_rotary_backward_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .apply_rotary import CppApplyRotaryBackward

    return [CppApplyRotaryBackward()]


@implements("kv_cache_append")
def kv_cache_append_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .kv_cache_append import CppKvCacheAppend

    return [CppKvCacheAppend()]


@implements("rotary_kv_append")
def rotary_kv_append_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .rotary_kv_append import CppRotaryKvAppend

    return [CppRotaryKvAppend()]


@implements("attention_decode")
def attention_decode_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .attention.decode import CppAttentionDecode

    return [CppAttentionDecode()]


@implements("mla_decode")
def mla_decode_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .attention.mla_decode import CppMlaDecode

    return [CppMlaDecode()]


@implements("top_k_top_p_sampling")
def top_k_top_p_sampling_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .sampling.top_k_top_p import CppTopKTopPSampling

    return [CppTopKTopPSampling()]


@implements("linear")
def linear_implementations() -> Iterable[Implementation]:
    """AMX tiles, and dot products of pairs, of bfloat16."""
    return _bfloat16_products("linear", 16)


@implements("gemm_sparse24")
def gemm_sparse24_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .sparse.gemm_sparse24 import CppGemmSparse24

    return [CppGemmSparse24()]


@implements("gemm_w8a8")
def gemm_w8a8_implementations() -> Iterable[Implementation]:
    """AMX tiles and dot products, for int8 activations."""
    return _int8_products("gemm_w8a8", 8)


@implements("gemm_w4a8")
def gemm_w4a8_implementations() -> Iterable[Implementation]:
    """AMX tiles and dot products, for int8 activations."""
    return _int8_products("gemm_w4a8", 4)


@implements("scaled_mm")
def scaled_mm_implementations() -> Iterable[Implementation]:
    """AMX tiles and dot products, for int8 operands."""
    return _int8_products("scaled_mm", 8)


@implements("cross_entropy")
def cross_entropy_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .losses.cross_entropy import CppCrossEntropy

    return [CppCrossEntropy()]


@implements("cross_entropy_backward")
def cross_entropy_backward_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .losses.cross_entropy import CppCrossEntropyBackward

    return [CppCrossEntropyBackward()]

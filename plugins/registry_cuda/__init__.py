"""CUDA C++ kernels in the box, compiled by NVRTC: elementwise (also by nvcc), rows of numbers, sampling, products."""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    from .elementwise import VectorElementwise
    from .inline_square import InlineSquare

    return [VectorElementwise("square"), InlineSquare()]


@registry.implements("gelu")
def gelu_implementations() -> list[Implementation]:
    from .elementwise import VectorElementwise

    return [VectorElementwise("gelu")]


@registry.implements("softmax")
def softmax_implementations() -> list[Implementation]:
    from .async_rows import AsyncSoftmax
    from .rows import CudaSoftmax, cluster, looped, row

    return [CudaSoftmax(row), CudaSoftmax(cluster), CudaSoftmax(looped), AsyncSoftmax()]


@registry.implements("softmax_backward")
def softmax_backward_implementations() -> list[Implementation]:
    from .async_rows import AsyncSoftmaxBackward

    return [AsyncSoftmaxBackward()]


@registry.implements("rms_norm")
def rms_norm_implementations() -> list[Implementation]:
    from .async_rows import AsyncRmsNorm
    from .rows import CudaRmsNorm, cluster, looped, row

    return [CudaRmsNorm(row), CudaRmsNorm(cluster), CudaRmsNorm(looped), AsyncRmsNorm()]


@registry.implements("rms_norm_backward")
def rms_norm_backward_implementations() -> list[Implementation]:
    from .norm_backward import StagedRmsNormBackward

    return [StagedRmsNormBackward()]


@registry.implements("attention")
def attention_implementations() -> list[Implementation]:
    from .attention.forward import WgmmaAttention

    return [WgmmaAttention()]


@registry.implements("attention_varlen")
def attention_varlen_implementations() -> list[Implementation]:
    from .attention.varlen import PackedWgmmaAttention

    return [PackedWgmmaAttention()]


@registry.implements("attention_backward")
def attention_backward_implementations() -> list[Implementation]:
    from .attention.backward import WgmmaAttentionBackward

    return [WgmmaAttentionBackward()]


@registry.implements("attention_varlen_backward")
def attention_varlen_backward_implementations() -> list[Implementation]:
    from .attention.varlen_backward import PackedWgmmaAttentionBackward

    return [PackedWgmmaAttentionBackward()]


@registry.implements("attention_decode")
def attention_decode_implementations() -> list[Implementation]:
    from .attention_decode import MmaDecode

    return [MmaDecode()]


@registry.implements("gemm_int4")
def gemm_int4_implementations() -> list[Implementation]:
    from .gemm_int4 import MmaInt4
    from .gemm_int4_wgmma import WgmmaInt4

    decode = MmaInt4()
    return [decode, WgmmaInt4(decode)]


@registry.implements("linear")
def linear_implementations() -> list[Implementation]:
    from .linear import WgmmaLinear

    return [WgmmaLinear()]


@registry.implements("scaled_mm")
def scaled_mm_implementations() -> list[Implementation]:
    from .scaled_mm import WgmmaScaledMm

    return [WgmmaScaledMm()]


@registry.implements("gemm_int8")
def gemm_int8_implementations() -> list[Implementation]:
    from .packed_wgmma import WgmmaPacked

    return [WgmmaPacked("gemm_int8", 8)]


@registry.implements("gemm_int2")
def gemm_int2_implementations() -> list[Implementation]:
    from .packed_wgmma import WgmmaPacked

    return [WgmmaPacked("gemm_int2", 2)]


@registry.implements("gemm_int1")
def gemm_int1_implementations() -> list[Implementation]:
    from .packed_wgmma import WgmmaPacked

    return [WgmmaPacked("gemm_int1", 1)]


@registry.implements("gemm_w4a16")
def gemm_w4a16_implementations() -> list[Implementation]:
    from .packed_wgmma import WgmmaPacked

    return [WgmmaPacked("gemm_w4a16", 4)]


@registry.implements("gemm_w4a8")
def gemm_w4a8_implementations() -> list[Implementation]:
    from .packed_wgmma import WgmmaPacked

    return [WgmmaPacked("gemm_w4a8", 4)]


@registry.implements("gemm_w8a8")
def gemm_w8a8_implementations() -> list[Implementation]:
    from .packed_wgmma import WgmmaPacked

    return [WgmmaPacked("gemm_w8a8", 8)]


@registry.implements("top_k_top_p_sampling")
def top_k_top_p_sampling_implementations() -> list[Implementation]:
    from .sampling.top_k_top_p import ClusterTopKTopPSampling

    return [ClusterTopKTopPSampling()]

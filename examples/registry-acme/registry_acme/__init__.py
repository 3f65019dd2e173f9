"""Nine kinds of ops, each with a contract of its own, and kernels for them in C++, Triton and torch.

This file is all that is imported when the host looks for plugins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import registry

if TYPE_CHECKING:
    from registry import Implementation, Op

KERNEL_REGISTRY_API = 1


@registry.defines
def acme_ops() -> Iterable[Op]:
    """The ops that this package adds."""
    from .ops import add_norm, attention, gated, gemm, layer_norm, moe, paged_decode

    return [
        layer_norm.FORWARD,
        layer_norm.BACKWARD,
        add_norm.FUSED_ADD_RMS_NORM,
        attention.ATTENTION,
        gemm.GEMM,
        gemm.FP8_GEMM,
        paged_decode.PAGED_DECODE,
        moe.TOPK_ROUTING,
        moe.MOE_LINEAR,
        gated.GATED,
    ]


@registry.implements("acme::layer_norm")
def layer_norm_implementations() -> Iterable[Implementation]:
    """C++ and Triton."""
    from .kernels.layer_norm import CppLayerNorm, TritonLayerNorm

    return [CppLayerNorm(), TritonLayerNorm()]


@registry.implements("acme::layer_norm_backward")
def layer_norm_backward_implementations() -> Iterable[Implementation]:
    """torch's own."""
    from .kernels.layer_norm import ATEN_BACKWARD

    return [ATEN_BACKWARD]


@registry.implements("acme::fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Iterable[Implementation]:
    """C++ and Triton."""
    from .kernels.layer_norm import CppAddNorm, TritonAddNorm

    return [CppAddNorm(), TritonAddNorm()]


@registry.implements("acme::attention")
def attention_implementations() -> Iterable[Implementation]:
    """torch's fused attention."""
    from .kernels.attention import SDPA

    return [SDPA]


@registry.implements("acme::paged_decode")
def paged_decode_implementations() -> Iterable[Implementation]:
    """C++."""
    from .kernels.attention import CppPagedDecode

    return [CppPagedDecode()]


@registry.implements("acme::gemm")
def gemm_implementations() -> Iterable[Implementation]:
    """C++."""
    from .kernels.gemm import CppGemm

    return [CppGemm()]


@registry.implements("acme::fp8_gemm")
def fp8_gemm_implementations() -> Iterable[Implementation]:
    """C++."""
    from .kernels.gemm import CppFp8Gemm

    return [CppFp8Gemm()]


@registry.implements("gemm_int4")
def gemm_int4_implementations() -> Iterable[Implementation]:
    """C++, for the op in the box."""
    from .kernels.gemm import CppGemmInt4

    return [CppGemmInt4()]


@registry.implements("acme::topk_routing")
def topk_routing_implementations() -> Iterable[Implementation]:
    """A stable sort."""
    from .kernels.moe import STABLE_ROUTING

    return [STABLE_ROUTING]


@registry.implements("acme::moe_linear")
def moe_linear_implementations() -> Iterable[Implementation]:
    """C++."""
    from .kernels.moe import CppMoe

    return [CppMoe()]


@registry.implements("acme::gated")
def gated_implementations() -> Iterable[Implementation]:
    """torch's functions."""
    from .kernels.gated import GATED

    return [GATED]

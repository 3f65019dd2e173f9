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
    """A form for one row of activations and one for up to 64."""
    from .gemm_int4 import CppGemmInt4, CppGemvInt4

    return [CppGemvInt4(), CppGemmInt4()]


def _packed_gemm(op: str, bits: int, nf4: bool = False) -> Iterable[Implementation]:
    from .packed_gemm import CppGemm, CppGemv

    return [CppGemv(op, bits, nf4), CppGemm(op, bits, nf4)]


@implements("gemm_int8")
def gemm_int8_implementations() -> Iterable[Implementation]:
    """A form for one row of activations and one for up to 64."""
    return _packed_gemm("gemm_int8", 8)


@implements("gemm_int2")
def gemm_int2_implementations() -> Iterable[Implementation]:
    """A form for one row of activations and one for up to 64."""
    return _packed_gemm("gemm_int2", 2)


@implements("gemm_int1")
def gemm_int1_implementations() -> Iterable[Implementation]:
    """A form for one row of activations and one for up to 64."""
    return _packed_gemm("gemm_int1", 1)


@implements("gemm_nf4")
def gemm_nf4_implementations() -> Iterable[Implementation]:
    """A form for one row of activations and one for up to 64."""
    return _packed_gemm("gemm_nf4", 4, nf4=True)


@implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Iterable[Implementation]:
    """One implementation."""
    from .decoder import CppFusedAddRmsNorm

    return [CppFusedAddRmsNorm()]

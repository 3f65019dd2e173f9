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
    """One form."""
    from .elementwise import VectorAdd

    return [VectorAdd()]


@implements("square")
def square_implementations() -> Iterable[Implementation]:
    """One form."""
    from .elementwise import Square

    return [Square()]


@implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    """One form, for both approximations."""
    from .elementwise import Gelu

    return [Gelu()]


@implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """A form for many rows and one for few long ones."""
    from .rows import SoftmaxColumns, SoftmaxRows

    return [SoftmaxRows(), SoftmaxColumns()]


@implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """One form."""
    from .rows import RmsNorm

    return [RmsNorm()]


@implements("gemm_int4")
def gemm_int4_implementations() -> Iterable[Implementation]:
    """A form for one row of activations and one for up to 64."""
    from .gemm_int4 import GemmInt4, GemvInt4

    return [GemvInt4(), GemmInt4()]

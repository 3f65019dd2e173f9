"""The ops in the box."""

from __future__ import annotations

from ..contract import Op
from .elementwise import GELU, SQUARE, VECTOR_ADD
from .gemm_int4 import GEMM_INT4
from .norm import RMS_NORM
from .softmax import SOFTMAX

BOX: tuple[Op, ...] = (VECTOR_ADD, SQUARE, GELU, SOFTMAX, RMS_NORM, GEMM_INT4)
"""In the order in which they are listed."""

__all__ = ["BOX", "GELU", "GEMM_INT4", "RMS_NORM", "SOFTMAX", "SQUARE", "VECTOR_ADD"]

"""The ops in the box."""

from __future__ import annotations

from ..contract import Op
from .decoder import (
    FUSED_ADD_RMS_NORM,
    GELU_AND_MUL,
    GELU_AND_MUL_BACKWARD,
    LAYER_NORM,
    LAYER_NORM_BACKWARD,
    SILU_AND_MUL,
    SILU_AND_MUL_BACKWARD,
)
from .elementwise import GELU, SQUARE, VECTOR_ADD
from .elementwise_backward import GELU_BACKWARD, SQUARE_BACKWARD
from .gemm_int4 import GEMM_INT4
from .gemm_sparse24 import GEMM_SPARSE24, GEMM_SPARSE24_BACKWARD
from .grouped import GROUPED_GEMM, GROUPED_GEMM_BACKWARD, GROUPED_GEMM_INT4, GROUPED_GEMM_INT4_BACKWARD
from .linear import LINEAR
from .linear_backward import LINEAR_BACKWARD
from .losses import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from .norm import RMS_NORM
from .norm_backward import RMS_NORM_BACKWARD
from .packed_a8 import GEMM_W4A8, GEMM_W8A8
from .packed_gemm import (
    GEMM_INT1,
    GEMM_INT1_BACKWARD,
    GEMM_INT2,
    GEMM_INT2_BACKWARD,
    GEMM_INT8,
    GEMM_INT8_BACKWARD,
    GEMM_NF4,
    GEMM_NF4_BACKWARD,
)
from .quantize_per_token import QUANTIZE_PER_TOKEN
from .scaled_mm import SCALED_MM
from .softmax import SOFTMAX
from .softmax_backward import SOFTMAX_BACKWARD

BOX: tuple[Op, ...] = (
    VECTOR_ADD,
    SQUARE,
    GELU,
    SOFTMAX,
    RMS_NORM,
    LINEAR,
    GROUPED_GEMM,
    GROUPED_GEMM_INT4,
    GEMM_INT4,
    GEMM_INT8,
    GEMM_INT2,
    GEMM_INT1,
    GEMM_NF4,
    GEMM_W4A8,
    GEMM_W8A8,
    GEMM_SPARSE24,
    QUANTIZE_PER_TOKEN,
    SCALED_MM,
    SILU_AND_MUL,
    GELU_AND_MUL,
    LAYER_NORM,
    FUSED_ADD_RMS_NORM,
    CROSS_ENTROPY,
    SQUARE_BACKWARD,
    GELU_BACKWARD,
    SOFTMAX_BACKWARD,
    RMS_NORM_BACKWARD,
    LINEAR_BACKWARD,
    GROUPED_GEMM_BACKWARD,
    GROUPED_GEMM_INT4_BACKWARD,
    GEMM_INT8_BACKWARD,
    GEMM_INT2_BACKWARD,
    GEMM_INT1_BACKWARD,
    GEMM_NF4_BACKWARD,
    GEMM_SPARSE24_BACKWARD,
    SILU_AND_MUL_BACKWARD,
    GELU_AND_MUL_BACKWARD,
    LAYER_NORM_BACKWARD,
    CROSS_ENTROPY_BACKWARD,
)
"""The ops of this package, in the order in which they are listed."""

__all__ = [
    "BOX",
    "CROSS_ENTROPY",
    "CROSS_ENTROPY_BACKWARD",
    "FUSED_ADD_RMS_NORM",
    "GELU",
    "GELU_AND_MUL",
    "GELU_AND_MUL_BACKWARD",
    "GELU_BACKWARD",
    "GEMM_INT1",
    "GEMM_INT1_BACKWARD",
    "GEMM_INT2",
    "GEMM_INT2_BACKWARD",
    "GEMM_INT4",
    "GEMM_INT8",
    "GEMM_INT8_BACKWARD",
    "GEMM_NF4",
    "GEMM_NF4_BACKWARD",
    "GEMM_SPARSE24",
    "GEMM_SPARSE24_BACKWARD",
    "GEMM_W4A8",
    "GEMM_W8A8",
    "GROUPED_GEMM",
    "GROUPED_GEMM_BACKWARD",
    "GROUPED_GEMM_INT4",
    "GROUPED_GEMM_INT4_BACKWARD",
    "LAYER_NORM",
    "LAYER_NORM_BACKWARD",
    "LINEAR",
    "LINEAR_BACKWARD",
    "QUANTIZE_PER_TOKEN",
    "RMS_NORM",
    "RMS_NORM_BACKWARD",
    "SCALED_MM",
    "SILU_AND_MUL",
    "SILU_AND_MUL_BACKWARD",
    "SOFTMAX",
    "SOFTMAX_BACKWARD",
    "SQUARE",
    "SQUARE_BACKWARD",
    "VECTOR_ADD",
]

"""A mixture of experts: the experts of each token, and products of rows grouped by expert."""

from __future__ import annotations

from .backward import GROUPED_GEMM_BACKWARD
from .dense import GROUPED_GEMM
from .fused_moe import FUSED_MOE
from .int4 import GROUPED_GEMM_INT4
from .int4_backward import GROUPED_GEMM_INT4_BACKWARD
from .scaled import GROUPED_SCALED_MM
from .topk_softmax import TOPK_SOFTMAX
from .topk_softmax_backward import TOPK_SOFTMAX_BACKWARD

__all__ = [
    "FUSED_MOE",
    "GROUPED_GEMM",
    "GROUPED_GEMM_BACKWARD",
    "GROUPED_GEMM_INT4",
    "GROUPED_GEMM_INT4_BACKWARD",
    "GROUPED_SCALED_MM",
    "TOPK_SOFTMAX",
    "TOPK_SOFTMAX_BACKWARD",
]

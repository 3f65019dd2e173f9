"""Products of a mixture of experts: rows grouped by expert, each group with a weight of its own."""

from __future__ import annotations

from .backward import GROUPED_GEMM_BACKWARD
from .dense import GROUPED_GEMM
from .int4 import GROUPED_GEMM_INT4
from .int4_backward import GROUPED_GEMM_INT4_BACKWARD

__all__ = ["GROUPED_GEMM", "GROUPED_GEMM_BACKWARD", "GROUPED_GEMM_INT4", "GROUPED_GEMM_INT4_BACKWARD"]

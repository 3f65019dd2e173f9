"""Element types as CUDA names them, and how many elements one load may take."""

from __future__ import annotations

import math
from collections.abc import Iterable

from registry import Problem

C_TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


def number_reasons(problem: Problem) -> Iterable[str]:
    """Why these kernels cannot read the problem's tensors."""
    if problem.dtype not in C_TYPES:
        yield f"{problem.dtype} is not one of {', '.join(C_TYPES)}"
    if not problem.traits["contiguous"]:
        yield "tensors are not contiguous"


def vector_width(itemsize: int, aligned: bool, vector_bytes: int, length: int = 0) -> int:
    """Elements of one load of at most ``vector_bytes``: a power of two that divides ``length``; 1 when not aligned."""
    return math.gcd(length, max(1, vector_bytes // itemsize)) if aligned else 1

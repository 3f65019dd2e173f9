"""What tolerances are made of: the rounding of a dtype, and of fp32 arithmetic seen from that dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..problem import Problem, dtype_name
from .checks import FLOATS

FLOAT32_UNIT = 2.0**-24
"""Unit roundoff of float32: one operation errs by at most this, relatively."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: 2**-24 float32, 2**-11 float16, 2**-8 bfloat16."""
    return torch.finfo(dtype).eps / 2


def units(float32: float, half: float) -> Mapping[str, float]:
    """``rtol`` in unit roundoffs of each dtype."""
    return {dtype_name(dtype): (float32 if dtype == torch.float32 else half) * unit_roundoff(dtype) for dtype in FLOATS}


def underflow() -> dict[str, float]:
    """``atol`` where errors are relative: what is lost below the normal numbers.

    float16 keeps its subnormals on every device (the conversion from fp32 makes them), so half a step is lost;
    bfloat16 and float32 may be flushed to zero, which GPU compilers do under ``ftz``.
    """
    return {
        "float32": torch.finfo(torch.float32).tiny,
        "float16": torch.finfo(torch.float16).smallest_normal * 2.0**-10,
        "bfloat16": torch.finfo(torch.bfloat16).tiny,
    }


def fp32_weight(problem: Problem) -> float:
    """How much one fp32 rounding weighs in unit roundoffs of the problem's dtype: 1, 2**-13 or 2**-16."""
    return FLOAT32_UNIT / unit_roundoff(problem.torch_dtype)

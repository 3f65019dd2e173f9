"""Parts of tolerances: the rounding of a dtype, and of fp32 arithmetic seen from that dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..problem import Problem, dtype_name
from .checks import WIDE

FLOAT32_UNIT = 2.0**-24
"""Unit roundoff of float32: one operation errs by at most this, relatively."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: 2**-53 float64, 2**-24 float32, 2**-11 float16, 2**-8 bfloat16."""
    return torch.finfo(dtype).eps / 2


def units(float32: float, half: float) -> Mapping[str, float]:
    """``rtol`` in unit roundoffs of each dtype; as many of float64 as of float32."""
    return {dtype_name(dtype): (half if dtype.itemsize == 2 else float32) * unit_roundoff(dtype) for dtype in WIDE}


def underflow(times: float = 1.0) -> dict[str, float]:
    """``atol`` where errors are relative: ``times`` the loss below the normal numbers.

    float16 keeps its subnormals on every device (the conversion from fp32 makes them), so half a step is lost;
    bfloat16 and float32 may be flushed to zero, which GPU compilers do under ``ftz``.
    """
    least = {dtype: torch.finfo(dtype).tiny * (2.0**-10 if dtype == torch.float16 else 1.0) for dtype in WIDE}
    return {dtype_name(dtype): times * lost for dtype, lost in least.items()}


def fp32_error(size: float, lost: float = 1.0) -> dict[str, float]:
    """``atol`` where fp32 arithmetic errs by ``size`` whatever the result, and ``lost`` times as much underflows."""
    narrower = {"float64": unit_roundoff(torch.float64) / FLOAT32_UNIT}
    return {name: size * narrower.get(name, 1.0) + least for name, least in underflow(lost).items()}


def fp32_weight(problem: Problem) -> float:
    """One rounding of the accumulator, in unit roundoffs of the problem's dtype: 1, 2**-13 or 2**-16.

    Halves are accumulated in float32, other dtypes in their own.
    """
    return min(FLOAT32_UNIT / unit_roundoff(problem.torch_dtype), 1.0)

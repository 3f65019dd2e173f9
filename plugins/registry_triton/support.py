"""Reasons, sizes and compiler options that the implementations of this plugin share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry import Device, Problem

KEPT = 1024
"""Spaces and defaults that each form keeps: a new size of a known kind finds its own without an enumeration."""

DTYPES = ("float32", "float16", "bfloat16")


def common_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why no kernel of this package can run the problem on the device."""
    dtype = problem.dims["dtype"]
    if dtype not in DTYPES:
        yield f"dtype {dtype} (supported: {', '.join(DTYPES)})"
    if not problem.traits["contiguous"]:
        yield "a tensor is not contiguous"
    major, minor = device.capability
    if device.type == "cuda" and (0, 0) < (major, minor) < (7, 5):
        yield f"compute capability {major}.{minor} (Triton needs 7.5)"
    elif dtype == "bfloat16" and (0, 0) < (major, minor) < (8, 0):
        yield f"bfloat16 on compute capability {major}.{minor} (needs 8.0)"


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a configuration that the compiler takes."""
    return {name: config[name] for name in ("num_warps", "num_stages") if name in config}

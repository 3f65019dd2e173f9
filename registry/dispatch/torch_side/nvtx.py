"""NVTX ranges around calls, which Nsight Systems and Nsight Compute show: ``KERNEL_REGISTRY_NVTX=1``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..warning import DispatchWarning

NVTX_VARIABLE = "KERNEL_REGISTRY_NVTX"


def _wanted() -> bool:
    """Whether ranges are wanted, and torch can make them."""
    if os.environ.get(NVTX_VARIABLE, "") in {"", "0"}:
        return False
    try:
        torch.cuda.nvtx.mark("kernel_registry")
    except (RuntimeError, AttributeError) as fault:
        warnings.warn(DispatchWarning(f"{NVTX_VARIABLE}: this torch makes no NVTX ranges: {fault}"), stacklevel=2)
        return False
    return True


NVTX = _wanted()
"""Whether calls have ranges. It is read once, when this module is imported: without ranges a hit costs nothing more."""


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A range of the current thread."""
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()

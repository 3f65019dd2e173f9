"""RMS norm in two forms: rows in registers, and rows in two passes."""

from __future__ import annotations

from registry import Device, Problem

from . import rows
from .kernels import rms_norm as kernels


class RowRmsNorm(rows.RegisterRows):
    """One or several whole rows a program, read once and kept in registers; fp32 accumulation."""

    op = "rms_norm"
    name = "triton.row"
    mixed = True
    kernel = kernels.row_rms_norm
    operands = ("y", "x", "weight", "eps")

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads every row once, which nothing beats while it fits comfortably."""
        return 2.0 if problem.cols <= 32768 else 1.0


class LoopedRmsNorm(rows.PassRows):
    """One row a program in two passes, the sum of squares first; for rows that do not fit in registers."""

    op = "rms_norm"
    name = "triton.looped"
    mixed = True
    kernel = kernels.looped_rms_norm
    operands = ("y", "x", "weight", "eps")
    tensors = 2

"""The gradient of softmax in two forms: rows in registers, and rows in two passes."""

from __future__ import annotations

from registry import Device, Problem

from . import rows
from .kernels import softmax_backward as kernels


class RowSoftmaxBackward(rows.RegisterRows):
    """One or several whole rows a program, read once and kept in registers; fp32 accumulation."""

    op = "softmax_backward"
    name = "triton.row"
    kernel = kernels.row_softmax_backward
    operands = ("grad_x", "grad_y", "y")
    held = 2

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads every row once, which nothing beats while it fits comfortably."""
        return 2.0 if problem.cols <= 16384 else 1.0


class LoopedSoftmaxBackward(rows.PassRows):
    """One row a program in two passes, the sum first; for rows that do not fit in registers."""

    op = "softmax_backward"
    name = "triton.looped"
    kernel = kernels.looped_softmax_backward
    operands = ("grad_x", "grad_y", "y")
    tensors = 2

"""fused_add_rms_norm in two forms: rows in registers, and rows in two passes."""

from __future__ import annotations

from registry import Config, Device, Launch, Problem
from registry.backends.programmatic_launch import pdl_options

from .. import rows
from .dependents import is_dependent
from .kernels import fused_add_rms_norm as kernels

_OPERANDS = ("x", "residual", "weight", "eps", "offset")


class RowFusedAddRmsNorm(rows.RegisterRows):
    """One or several whole rows a program: both are read once, and their sum is kept in registers; fp32 arithmetic."""

    op = "fused_add_rms_norm"
    name = "triton.row"
    mixed = True
    kernel = kernels.row_fused_add_rms_norm
    operands = _OPERANDS
    held = 2

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        alone, dependent = super().launch(problem, config, device), is_dependent(device)
        return Launch(
            alone.kernel,
            grid=alone.grid,
            args=alone.args,
            constants={**alone.constants, "DEPENDENT": dependent},
            options={**alone.options, **pdl_options(dependent)},
        )

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads every row once, which nothing beats while it fits comfortably."""
        return 2.0 if problem.cols <= 16384 else 1.0


class LoopedFusedAddRmsNorm(rows.PassRows):
    """One row a program in two passes, the sum and its squares first; for rows that do not fit in registers."""

    op = "fused_add_rms_norm"
    name = "triton.looped"
    mixed = True
    kernel = kernels.looped_fused_add_rms_norm
    operands = _OPERANDS
    tensors = 2

"""Layer norm in two forms: rows in registers, and rows in two passes."""

from __future__ import annotations

from registry import Config, Device, Problem

from .. import rows
from .kernels import layer_norm as kernels


class RowLayerNorm(rows.RegisterRows):
    """One or several whole rows a program, read once and kept in registers; the variance is computed from these."""

    op = "layer_norm"
    name = "triton.row"
    mixed = True
    kernel = kernels.row_layer_norm
    operands = ("y", "x", "weight", "bias", "eps")

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads every row once, which nothing beats while it fits comfortably."""
        return 2.0 if problem.cols <= 32768 else 1.0


class LoopedLayerNorm(rows.PassRows):
    """One row a program in two passes, mean and variance first; for rows that do not fit in registers."""

    op = "layer_norm"
    name = "triton.looped"
    mixed = True
    kernel = kernels.looped_layer_norm
    operands = ("y", "x", "weight", "bias", "eps")
    tensors = 3

    def default(self, problem: Problem, device: Device) -> Config:
        """One vector a thread of 16 warps: a lane's mean and squares take the registers of the second."""
        wanted = 16 * 32 * rows.vector_of(problem)

        def distance(config: Config) -> tuple[int, ...]:
            return abs(config["BLOCK"] - wanted), abs(config["num_warps"] - 16), config["num_stages"]

        return min(self.space(problem, device).configs, key=distance)

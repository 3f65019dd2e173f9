"""linear on Hopper's warpgroup tensor cores."""

from __future__ import annotations

from registry import Device, Problem

from .wgmma_gemm import WgmmaGemm


class WgmmaLinear(WgmmaGemm):
    """``x @ weight.T + bias`` of halves, summed in float32 and rounded once."""

    op = "linear"
    operands = ("x", "weight")

    def scales(self, problem: Problem) -> str:
        """The kind of scales: none."""
        return ""

    def output(self, problem: Problem) -> str:
        """The dtype of y, which is that of x."""
        return str(problem.dtype)

    def preference(self, problem: Problem, device: Device) -> float:
        """Below torch's product, whose tile is chosen for each size."""
        return -0.25

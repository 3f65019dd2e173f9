"""scaled_mm of float8 operands on Hopper's warpgroup tensor cores."""

from __future__ import annotations

from registry import Device, Problem

from .wgmma_gemm import WgmmaGemm


class WgmmaScaledMm(WgmmaGemm):
    """Scales of tensors and rows multiply the sums, those of blocks the products of each 128 k's."""

    op = "scaled_mm"
    operands = ("a", "b")

    def scales(self, problem: Problem) -> str:
        """The kind of scales by the op's name for it, such as ``"row"`` or ``"block"``."""
        return str(problem.scales)

    def output(self, problem: Problem) -> str:
        """The dtype of the output, the problem's ``out_dtype``."""
        return str(problem.out_dtype)

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of torch's operator but for small batches, where K should be split."""
        return 1.25 if problem.m > 64 else 0.6

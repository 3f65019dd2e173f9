"""Dense products of rows that are grouped by expert: a tile of one expert's rows a program."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem, Space
from registry.backends.triton import TritonImplementation

from ..kernels import grouped_gemm as kernels
from ..support import options
from .tiles import most_tiles, precision, product_default, product_space, reasons, search_constants


class TiledGroupedGemm(TritonImplementation):
    """Tiles on the tensor cores; each program finds its expert by the offsets, which only the device reads."""

    op = "grouped_gemm"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, height of a band, warps, and how many steps are loaded ahead."""
        return product_space(problem, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as high as an expert's share of the rows, 128 wide, 64 deep."""
        return product_default(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a product for each expert, which waits for the offsets and cannot be captured."""
        return 0.25

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        n, k = problem.n, problem.k
        tiles = most_tiles(problem.m, problem.experts, config["BLOCK_M"])
        return Launch(
            kernels.gemm,
            grid=(tiles * -(-n // config["BLOCK_N"]), 1),
            args=("y", "x", "weights", "offsets", problem.m, n, k, tiles),
            constants={
                **search_constants(problem),
                **precision(problem),
                "TRANSPOSED": False,
                "EVEN_K": k % config["BLOCK_K"] == 0,
                **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")},
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )

"""The gradients of grouped products: a product with the weights as they lie, and a sum over each expert's rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import fits_registers, fits_shared, threads
from registry.backends.triton import TritonImplementation

from ..kernels import grouped_gemm as kernels
from ..support import KEPT, options
from .tiles import most_tiles, precision, reasons, search_constants, share


class TiledGroupedGradients(TritonImplementation):
    """Tiles of rows for their gradient, tiles of weights for theirs; the offsets are read by the device alone."""

    op = "grouped_gemm_backward"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows of a tile, the tile of a weight, elements and rows of a step, warps of rows, and steps loaded ahead."""
        return _space(share(problem, 2), problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as high as an expert's share of the rows, 128 by 128 of a weight."""
        wide = 64 if problem.dtype == "float32" else 128
        return _nearest(self.space(problem, device), share(problem), wide)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before products for each expert, which wait for the offsets and cannot be captured."""
        return 0.25

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        arguments = problem.traits.arguments
        need_x, need_weights = (arguments is None or arguments.flag(name) for name in ("need_x", "need_weights"))
        found = []
        if need_x or not need_weights:
            found.append(_of_rows(problem, config, need_x))
        if need_weights:
            found.append(_of_weights(problem, config))
        return found


def _of_rows(problem: Problem, config: Config, needed: bool) -> Launch:
    """``grad_x``; nothing runs where no gradient is needed."""
    n, k = problem.n, problem.k
    tiles = most_tiles(problem.m, problem.experts, config["BLOCK_M"]) if needed else 0
    return Launch(
        kernels.gemm,
        grid=(tiles * -(-k // config["BLOCK_N"]), 1),
        args=("grad_x", "grad_y", "weights", "offsets", problem.m, k, n, tiles),
        constants={
            **search_constants(problem),
            **precision(problem),
            "TRANSPOSED": True,
            "EVEN_K": n % config["STEP"] == 0,
            "BLOCK_M": config["BLOCK_M"],
            "BLOCK_N": config["BLOCK_N"],
            "BLOCK_K": config["STEP"],
            "GROUP_M": 8,
            "STAGES": config["num_stages"],
        },
        options=options(config),
    )


def _of_weights(problem: Problem, config: Config) -> Launch:
    """``grad_weights``."""
    n, k, block = problem.n, problem.k, config["BLOCK_N"]
    return Launch(
        kernels.outer,
        grid=(-(-n // block) * -(-k // block), problem.experts),
        args=("grad_weights", "grad_y", "x", "offsets", problem.m, n, k),
        constants={
            "EXPERTS": problem.experts,
            **precision(problem),
            "BLOCK_M": config["STEP"],
            "BLOCK_N": block,
            "BLOCK_K": block,
            "GROUP_M": 8,
            "STAGES": config["num_stages"],
        },
        # of 4 warps 128 by 128 accumulators spill on an A100
        options={"num_warps": 8, "num_stages": config["num_stages"]},
    )


@lru_cache(maxsize=KEPT)
def _space(highest: int, itemsize: int, device: Device) -> Space:
    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_M"] * config["BLOCK_N"], config["num_warps"], device, share=0.6)

    def filled(config: Config) -> bool:
        return bool(config["BLOCK_M"] * config["BLOCK_N"] >= 16 * threads(config["num_warps"], device))

    def shared(config: Config) -> bool:
        high = max(config["BLOCK_M"], config["BLOCK_N"])
        return fits_shared(config["num_stages"] * (high + config["BLOCK_N"]) * config["STEP"] * itemsize, device)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if highest // 4 <= block <= highest],
            BLOCK_N=[64, 128],
            STEP=[32, 64] if itemsize == 2 else [16, 32],
            num_warps=[4, 8],
            num_stages=[3, 4],
        )
        .require("the accumulators fit in registers", registers)
        .require(
            "at least 16 accumulators a thread of 8 warps", lambda config: filled(config) or config["num_warps"] == 4
        )
        .require("the tiles fit in shared memory", shared)
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, high: int, wide: int) -> Config:
    """The configuration nearest to tiles ``high`` and ``wide``, with the longest steps."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["BLOCK_M"] - high), abs(config["BLOCK_N"] - wide), -config["STEP"],
            -config["num_warps"], config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

"""4-bit weight-only matrix product for prefill: tiles on the tensor cores."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import fits_registers, next_power_of_2, threads
from registry.backends.triton import TritonImplementation

from . import int4
from .kernels import gemm_int4 as kernels
from .support import KEPT, options


class GemmInt4(TritonImplementation):
    """Tiles on the tensor cores, weights dequantised to the activations' dtype in registers; for prefill."""

    op = "gemm_int4"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from int4.reasons(problem, device, 16)

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, warps, and how many steps are loaded ahead."""
        tall = max(16, min(128, next_power_of_2(problem.m)))
        return _space(tall, int4.blocks_k(problem, (32, 64, 128)) or (16,), problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tallest tile, 128 wide, 64 deep."""
        return _nearest(self.space(problem, device), 128 if problem.m > 16 else 64)

    def preference(self, problem: Problem, device: Device) -> float:
        """Beats dequantise-then-matmul up to a few hundred rows, where reading the weights is most of the work."""
        if 64 < problem.m <= 256:
            # second to cuda.mma, where that runs
            return 0.3
        return 0.75 if 256 < problem.m <= 512 else -0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tiles = -(-problem.m // config["BLOCK_M"]) * -(-problem.n // config["BLOCK_N"])
        constants = {"BLOCK_M": config["BLOCK_M"], "GROUP_M": 8, **int4.precision(problem)}
        return Launch(
            kernels.gemm,
            grid=(tiles,),
            args=("y", "a", "qweight", "scales", "zeros", problem.m, problem.n, problem.k),
            constants={**int4.shared_constants(problem, config), **constants},
            options=options(config),
        )


@lru_cache(maxsize=KEPT)
def _space(tall: int, blocks_k: tuple[int, ...], itemsize: int, device: Device) -> Space:
    space = Space(
        BLOCK_M=[block for block in (16, 32, 64, 128) if tall // 4 <= block <= tall],
        BLOCK_N=[64, 128, 256],
        BLOCK_K=blocks_k,
        num_warps=[4, 8],
        num_stages=[2, 3, 4],
    )

    def registers(config: Config) -> bool:
        live = config["BLOCK_M"] * config["BLOCK_N"] + config["BLOCK_K"] * config["BLOCK_N"] // 2
        return fits_registers(live, config["num_warps"], device, share=0.8)

    def filled(config: Config) -> bool:
        return bool(config["BLOCK_M"] * config["BLOCK_N"] >= 16 * threads(config["num_warps"], device))

    return (
        space.require("accumulators and weights fit in registers", registers)
        .require("at least 16 accumulators a thread", lambda config: filled(config) or config["num_warps"] == 4)
        .require(
            "the tiles fit in shared memory", lambda config: int4.fits(itemsize, config, config["BLOCK_M"], device)
        )
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, wide: int) -> Config:
    """The configuration nearest to the tallest tile, ``wide`` columns and 64 k's."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            -config["BLOCK_M"], abs(config["BLOCK_N"] - wide), abs(config["BLOCK_K"] - 64),
            abs(config["num_stages"] - 3), config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4),
        )  # fmt: skip

    return min(space.configs, key=distance)

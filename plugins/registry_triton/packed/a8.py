"""Packed weights with int8 or float8 activations: tiles of 8-bit levels on the tensor cores, K split for few rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from registry import Config, Device, Problem, Space
from registry.backends.estimate import fits_registers, next_power_of_2, programs_per_multiprocessor

from ..kernels import packed_a8 as kernels
from ..quantize import float8_reasons
from ..support import KEPT
from .problems import fits
from .split import SplitProduct, every_split_works

_LEAST_DOT = 32
"""k's that an instruction for 8-bit levels takes."""


class TiledA8(SplitProduct):
    """Centred levels, scaled after each group; one split for prefill, several for decode."""

    name = "triton.gemm"
    kernel = kernels.gemm

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from float8_reasons(problem.activation, device)

    def operands(self, problem: Problem) -> tuple[str, ...]:
        return ("scale_a", "qweight", "scales", "zeros")

    def blocks(self, problem: Problem) -> tuple[int, ...]:
        """64 and 128 k's, or what the groups allow."""
        wide = self.within_groups(problem, (64, 128), _LEAST_DOT)
        return wide or self.within_groups(problem, (32,), _LEAST_DOT)

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, split, warps, and how many steps are loaded ahead."""
        tall = max(16, min(128, next_power_of_2(problem.m)))
        return _space(problem.k, tall, self.blocks(problem), self.per_word, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tallest tile, 64 k's deep, and splits until every SM has about two programs."""
        space = self.space(problem, device)
        tall = max(config["BLOCK_M"] for config in space.configs)
        return _nearest(space, -(-problem.n // 64) * -(-problem.m // tall), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above other implementations: they read the weight in more bits than it has."""
        return 1.0

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        tiles = -(-problem.m // config["BLOCK_M"]) * -(-problem.n // config["BLOCK_N"])
        return (tiles, config["SPLIT_K"])

    def format_constants(self, problem: Problem) -> dict[str, Any]:
        """How the weight is decoded, by name; these ops have no codebook."""
        return {name: value for name, value in super().format_constants(problem).items() if name != "NF4"}

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        """The constants of this kernel alone; NARROW: multiply 8-bit levels directly.

        Hopper sums float8 products in fewer bits than fp32 has, so that fp32 results are products of halves.
        """
        exact = problem.activation == "int8" or (self.bits == 4 and problem.dtype != "float32")
        return {"STATIC": bool(problem.static), "NARROW": exact, "BLOCK_M": config["BLOCK_M"]}


@lru_cache(maxsize=KEPT)
def _space(k: int, tall: int, blocks_k: tuple[int, ...], per_word: int, device: Device) -> Space:
    def registers(config: Config) -> bool:
        live = 2 * config["BLOCK_M"] * config["BLOCK_N"] + config["BLOCK_K"] * config["BLOCK_N"] // 2
        return fits_registers(live, config["num_warps"], device, share=0.8)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if tall // 2 <= block <= tall],
            BLOCK_N=[64, 128],
            BLOCK_K=blocks_k,
            SPLIT_K=[1, 2, 4, 8] if tall <= 64 else [1],
            num_warps=[4, 8],
            num_stages=[3, 4],
        )
        .require("every split has work", lambda config: every_split_works(k, config))
        .require("accumulators and weights fit in registers", registers)
        .require("the tiles fit in shared memory", lambda config: fits(1, config, config["BLOCK_M"], per_word, device))
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, tiles: int, device: Device) -> Config:
    """The tallest tile, with about two programs an SM; ``tiles`` is how many there are of those 64 wide.

    Deeper or narrower tiles than these spill registers on Hopper, while the weight's levels are converted.
    """

    def distance(config: Config) -> tuple[float, ...]:
        programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
        return (
            -config["BLOCK_M"], abs(config["BLOCK_N"] - (128 if config["BLOCK_M"] == 128 else 64)),
            abs(min(programs, 8) - 2), abs(config["BLOCK_K"] - 64),
            config["num_warps"] != (8 if config["BLOCK_M"] == 128 else 4), config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

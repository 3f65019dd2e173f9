"""Products of rows that are grouped by expert, of float8 and int8: a tile of one expert's rows a program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import fits_registers, fits_shared, threads
from registry.backends.triton import INTERPRETED, TritonImplementation

from ..quantize import float8_reasons
from ..support import KEPT, options
from .kernels import scaled as kernels
from .tiles import most_tiles, search_constants, share

_MOST_EXPERTS = 4094
_IMPRECISE = 128
"""The most k's that the tensor cores sum in 13 bits, as DeepSeek-V3 does it."""
_MOST_BYTES = 2**15
_FEW = 32
"""Rows of a tile up to which a weight may be the left operand."""


class TiledGroupedScaledMm(TritonImplementation):
    """Tiles on the tensor cores; each program finds its expert by the offsets, which only the device reads."""

    op = "grouped_scaled_mm"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if not problem.traits["contiguous"]:
            yield "a tensor is not contiguous"
        yield from float8_reasons(problem.dtype, device)
        if device.type == "cuda" and (0, 0) < device.capability < (8, 0):
            yield f"compute capability {device.capability[0]}.{device.capability[1]} (needs 8.0)"
        if problem.experts > _MOST_EXPERTS:
            yield f"{problem.experts} experts are too many for a program to look through (limit {_MOST_EXPERTS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, which operand comes first, warps, and how many steps are loaded ahead."""
        return _space(share(problem, 2), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A tile as high as an expert's share of the rows, 128 wide and deep."""
        return _nearest(self.space(problem, device), share(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a product for each expert, which waits for the offsets; torch's grouped kernel has tiles for many
        rows alone."""
        return 0.75 if share(problem) <= 64 else 0.25

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        n, k = problem.n, problem.k
        tiles = most_tiles(problem.m, problem.experts, config["BLOCK_M"])
        return Launch(
            kernels.gemm,
            grid=(tiles * -(-n // config["BLOCK_N"]), 1),
            args=("y", "x", "weights", "offsets", "scale_x", "scale_weights", problem.m, n, k, tiles),
            constants={
                **search_constants(problem),
                "INTEGER": problem.dtype == "int8",
                "LOSSY": min(config["BLOCK_K"], _IMPRECISE),
                "NAN": INTERPRETED and problem.dtype != "int8",
                "EVEN_K": k % config["BLOCK_K"] == 0,
                **{name: config[name] for name in ("SWAP", "BLOCK_M", "BLOCK_N", "BLOCK_K")},
                "GROUP_M": 8,
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )


@lru_cache(maxsize=KEPT)
def _space(highest: int, device: Device) -> Space:
    def filled(config: Config) -> bool:
        return bool(config["BLOCK_M"] * config["BLOCK_N"] >= 32 * threads(config["num_warps"], device))

    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_M"] * config["BLOCK_N"], config["num_warps"], device, share=0.6)

    def shared(config: Config) -> bool:
        # a byte an element
        each = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"]
        return fits_shared(config["num_stages"] * each, device)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if highest // 4 <= block <= highest],
            BLOCK_N=[64, 128, 256],
            BLOCK_K=[128, 256],
            SWAP=[False, True],
            num_warps=[4, 8],
            num_stages=[3, 4],
        )
        .require("a weight comes first for few rows alone", lambda config: not config["SWAP"] or _is_low(config))
        .require("a weight's tile takes at most 32 KiB", lambda config: _bytes_of_weight(config) <= _MOST_BYTES)
        .require("the accumulators fit in registers", registers)
        .require(
            "at least 32 accumulators a thread of 8 warps", lambda config: filled(config) or config["num_warps"] == 4
        )
        .require("the tiles fit in shared memory", shared)
    )


def _bytes_of_weight(config: Config) -> int:
    return int(config["BLOCK_N"] * config["BLOCK_K"])


def _is_low(config: Config) -> bool:
    return bool(config["BLOCK_M"] <= _FEW)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, high: int) -> Config:
    """The configuration nearest to a tile of ``high`` by 128, 128 deep."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["BLOCK_M"] - high), abs(config["BLOCK_N"] - 128), abs(config["BLOCK_K"] - 128), config["SWAP"],
            config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4), config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

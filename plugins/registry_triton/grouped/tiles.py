"""Tiles of rows that are grouped by expert: how many there may be, their spaces and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from registry import Config, Device, Problem, Space
from registry.backends.estimate import fits_registers, fits_shared, next_power_of_2, threads

from ..support import KEPT, common_reasons

_MOST_EXPERTS = 4094


def reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why no grouped kernel of this package can run the problem on the device."""
    yield from common_reasons(problem, device)
    if problem.experts > _MOST_EXPERTS:
        yield f"{problem.experts} experts are too many for a program to look through (limit {_MOST_EXPERTS})"


def most_tiles(rows: int, experts: int, block: int) -> int:
    """The most tiles of ``block`` rows for any offsets: each group of rows, also the rows of no expert, begins one."""
    groups = min(experts + 2, rows)
    return (rows - groups) // block + groups


def search_constants(problem: Problem) -> dict[str, int]:
    """The constants of a kernel that looks for a tile's expert."""
    return {"EXPERTS": problem.experts, "PLACES": next_power_of_2(problem.experts + 2)}


def precision(problem: Problem) -> dict[str, str]:
    """The ``input_precision`` of ``tl.dot``: "ieee" for float32, since tf32 keeps 10 of its 23 bits."""
    return {"PRECISION": "ieee" if problem.dtype == "float32" else "tf32"}


def share(problem: Problem, times: int = 1) -> int:
    """Rows of a tile, a power of two from 16 to 128: an expert's share of the rows, times ``times``."""
    return max(16, min(128, next_power_of_2(times * problem.m // problem.experts)))


def product_space(problem: Problem, device: Device) -> Space:
    """Tile, height of a band, warps, and how many steps are loaded ahead."""
    return _space(share(problem, 2), problem.torch_dtype.itemsize, device)


@lru_cache(maxsize=KEPT)
def _space(highest: int, itemsize: int, device: Device) -> Space:
    def filled(config: Config) -> bool:
        return bool(config["BLOCK_M"] * config["BLOCK_N"] >= 32 * threads(config["num_warps"], device))

    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_M"] * config["BLOCK_N"], config["num_warps"], device, share=0.6)

    def shared(config: Config) -> bool:
        each = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * itemsize
        return fits_shared(config["num_stages"] * each, device)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if highest // 4 <= block <= highest],
            BLOCK_N=[64, 128, 256],
            BLOCK_K=[64, 128] if itemsize == 2 else [16, 32],
            GROUP_M=[4, 16],
            num_warps=[4, 8],
            num_stages=[3, 4],
        )
        .require("the accumulators fit in registers", registers)
        .require(
            "at least 32 accumulators a thread of 8 warps", lambda config: filled(config) or config["num_warps"] == 4
        )
        .require("the tiles fit in shared memory", shared)
    )


def product_default(problem: Problem, device: Device) -> Config:
    """A tile as high as an expert's share of the rows; half as wide in float32, which takes twice the registers."""
    wide = 64 if problem.dtype == "float32" else 128
    return _nearest(product_space(problem, device), share(problem), wide)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, high: int, wide: int) -> Config:
    """The configuration nearest to a tile of ``high`` by ``wide``, 64 deep."""

    def distance(config: Config) -> tuple[Any, ...]:
        return (
            abs(config["BLOCK_M"] - high), abs(config["BLOCK_N"] - wide), abs(config["BLOCK_K"] - 64),
            config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4), config["num_stages"], -config["GROUP_M"],
        )  # fmt: skip

    return min(space.configs, key=distance)

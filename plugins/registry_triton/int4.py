"""Helpers of the kernels over the 4-bit packing: groups along K, tiles that one row of scales serves, reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from registry import Config, Device, Problem
from registry.backends.estimate import fits_shared, next_power_of_2

from .support import common_reasons


def group(problem: Problem) -> int:
    """Consecutive k's with one scale, as an extent that a block must divide: no bound for whole channels."""
    return int(problem.k) if per_channel(problem) else int(problem.group_size)


def per_channel(problem: Problem) -> bool:
    """Whether a column has one scale."""
    return bool(problem.group_size >= problem.k)


def blocks_k(problem: Problem, wanted: Sequence[int]) -> tuple[int, ...]:
    """Blocks of ``wanted`` that one row of scales serves; the smallest where a channel is shorter than all of them."""
    if per_channel(problem):
        return tuple([block for block in wanted if block <= next_power_of_2(problem.k)]) or (min(wanted),)
    return tuple([block for block in wanted if problem.group_size % block == 0])


def reasons(problem: Problem, device: Device, least_group: int) -> Iterator[str]:
    """Why no kernel over this packing can run the problem; a group must be a multiple of ``least_group``."""
    yield from common_reasons(problem, device)
    if problem.bits != 4:
        yield f"{problem.bits} bits (supported: 4)"
    if problem.k % 8:
        yield f"k={problem.k} is no multiple of 8"
    if not per_channel(problem):
        if problem.group_size % least_group:
            yield f"group_size={problem.group_size} is no multiple of {least_group}"
        if problem.k % problem.group_size:
            yield f"k={problem.k} is no multiple of group_size={problem.group_size}"
    if max(1, problem.k // group(problem)) * problem.n >= 2**31:
        yield f"{problem.k // group(problem)} x {problem.n} scales (limit {2**31 - 1})"


def shared_constants(problem: Problem, config: Config) -> dict[str, Any]:
    """The constants of every kernel over this packing, by name."""
    return {
        "GROUP": group(problem),
        "PER_CHANNEL": per_channel(problem),
        "EVEN_K": problem.k % config["BLOCK_K"] == 0,
        "BLOCK_N": config["BLOCK_N"],
        "BLOCK_K": config["BLOCK_K"],
        "STAGES": config["num_stages"],
    }


def precision(problem: Problem) -> dict[str, str]:
    """The ``input_precision`` of ``tl.dot``: "ieee" for float32, since tf32 keeps 10 of its 23 bits."""
    return {"PRECISION": "ieee" if problem.dtype == "float32" else "tf32"}


def fits(size: int, config: Config, block_m: int, device: Device) -> bool:
    """Whether the pipelined tiles of a and of packed words, and the dequantised tile, fit in shared memory.

    ``size`` is the bytes of an activation.
    """
    tile_a = block_m * config["BLOCK_K"] * size
    packed = config["BLOCK_K"] // 8 * config["BLOCK_N"] * 4
    weight = config["BLOCK_K"] * config["BLOCK_N"] * size
    ahead = max(config["num_stages"] - 1, 1)
    # what Triton 3.9 reports for wgmma to the byte: one more tile of a than of packed words
    return fits_shared((ahead + 1) * tile_a + ahead * packed + weight, device)

"""4-bit weight-only matrix product: prefill, batched decode (split K) and one user, over one packing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import (
    elements_per_thread,
    fits_registers,
    fits_shared,
    next_power_of_2,
    programs_per_multiprocessor,
    row_multiple,
    threads,
)
from registry.backends.triton import TritonImplementation

from .kernels import gemm_int4 as kernels
from .support import common_reasons, options

_SUM_BLOCK = 1024
_MAX_GEMV_ROWS = 4


def _group(problem: Problem) -> int:
    """Consecutive k's with one scale, as an extent that a block must divide: no bound for whole channels."""
    return int(problem.k) if _per_channel(problem) else int(problem.group_size)


def _per_channel(problem: Problem) -> bool:
    return bool(problem.group_size >= problem.k)


def _blocks_k(problem: Problem, wanted: Sequence[int]) -> list[int]:
    """Those of ``wanted`` that one row of scales serves; the smallest where a channel is shorter than all of them."""
    if _per_channel(problem):
        return [block for block in wanted if block <= next_power_of_2(problem.k)] or [min(wanted)]
    return [block for block in wanted if problem.group_size % block == 0]


def _reasons(problem: Problem, device: Device, least_group: int) -> Iterator[str]:
    yield from common_reasons(problem, device)
    if problem.bits != 4:
        yield f"{problem.bits} bits (supported: 4)"
    if problem.k % 8:
        yield f"k={problem.k} is no multiple of 8"
    if not _per_channel(problem):
        if problem.group_size % least_group:
            yield f"group_size={problem.group_size} is no multiple of {least_group}"
        if problem.k % problem.group_size:
            yield f"k={problem.k} is no multiple of group_size={problem.group_size}"
    if max(1, problem.k // _group(problem)) * problem.n >= 2**31:
        yield f"{problem.k // _group(problem)} x {problem.n} scales (limit {2**31 - 1})"


def _shared_constants(problem: Problem, config: Config) -> dict[str, Any]:
    return {
        "GROUP": _group(problem),
        "PER_CHANNEL": _per_channel(problem),
        "EVEN_K": problem.k % config["BLOCK_K"] == 0,
        "BLOCK_N": config["BLOCK_N"],
        "BLOCK_K": config["BLOCK_K"],
        "STAGES": config["num_stages"],
    }


def _precision(problem: Problem) -> dict[str, str]:
    """tf32 would keep 10 of fp32's 23 bits."""
    return {"PRECISION": "ieee" if problem.dtype == "float32" else "tf32"}


def _fits(problem: Problem, config: Config, block_m: int, device: Device) -> bool:
    """The pipelined tiles of a and of packed words, and the dequantised tile, in shared memory."""
    size = problem.torch_dtype.itemsize
    tile_a = block_m * config["BLOCK_K"] * size
    packed = config["BLOCK_K"] // 8 * config["BLOCK_N"] * 4
    weight = config["BLOCK_K"] * config["BLOCK_N"] * size
    ahead = max(config["num_stages"] - 1, 1)
    # what Triton 3.9 reports for wgmma to the byte: one more tile of a than of packed words
    return fits_shared((ahead + 1) * tile_a + ahead * packed + weight, device)


def _span(problem: Problem, config: Config) -> int:
    """The k's of each split: whole blocks."""
    blocks = -(-problem.k // config["BLOCK_K"])
    return int(-(-blocks // config["SPLIT_K"])) * int(config["BLOCK_K"])


def _every_split_works(problem: Problem, config: Config) -> bool:
    return bool((config["SPLIT_K"] - 1) * _span(problem, config) < problem.k)


class GemmInt4(TritonImplementation):
    """Tiles on the tensor cores, weights dequantised to the activations' dtype in registers; for prefill."""

    op = "gemm_int4"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from _reasons(problem, device, 16)

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, warps, and how many steps are loaded ahead."""
        tall = max(16, min(128, next_power_of_2(problem.m)))
        blocks_m = [block for block in (16, 32, 64, 128) if tall // 4 <= block <= tall]
        space = Space(
            BLOCK_M=blocks_m,
            BLOCK_N=[64, 128, 256],
            BLOCK_K=_blocks_k(problem, [32, 64, 128]) or [16],
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
            .require("the tiles fit in shared memory", lambda config: _fits(problem, config, config["BLOCK_M"], device))
        )

    def default(self, problem: Problem, device: Device) -> Config:
        """The tallest tile, 128 wide, 64 deep."""

        def distance(config: Config) -> tuple[int, ...]:
            wide = 128 if problem.m > 16 else 64
            return (
                -config["BLOCK_M"], abs(config["BLOCK_N"] - wide), abs(config["BLOCK_K"] - 64),
                abs(config["num_stages"] - 3), config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4),
            )  # fmt: skip

        return min(self.space(problem, device).configs, key=distance)

    def preference(self, problem: Problem, device: Device) -> float:
        """Beats dequantise-then-matmul up to a few hundred rows, where reading the weights is most of the work."""
        return 0.75 if 64 < problem.m <= 512 else -0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tiles = -(-problem.m // config["BLOCK_M"]) * -(-problem.n // config["BLOCK_N"])
        constants = {"BLOCK_M": config["BLOCK_M"], "GROUP_M": 8, **_precision(problem)}
        return Launch(
            kernels.gemm,
            grid=(tiles,),
            args=("y", "a", "qweight", "scales", "zeros", problem.m, problem.n, problem.k),
            constants={**_shared_constants(problem, config), **constants},
            options=options(config),
        )


class _SplitInt4(TritonImplementation):
    """What split-K kernels share: fp32 partial products in scratch, added by a second launch in a fixed order."""

    op = "gemm_int4"
    kernel: Any

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        if config["SPLIT_K"] == 1:
            return {}
        return {"partial": TensorSpec.contiguous((config["SPLIT_K"], problem.m, problem.n), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        split = config["SPLIT_K"]
        operands = ("a", "qweight", "scales", "zeros", problem.m, problem.n, problem.k, _span(problem, config))
        product = Launch(
            self.kernel,
            grid=self.grid(problem, config),
            args=("y" if split == 1 else "partial", *operands),
            constants={**_shared_constants(problem, config), **self.constants(problem, config)},
            options=options(config),
        )
        if split == 1:
            return [product]
        count = problem.m * problem.n
        multiple = row_multiple(problem.n)
        constants = {"MULTIPLE": multiple, "SPLIT_K": split, "BLOCK": _SUM_BLOCK}
        arguments = ("y", "partial", count // multiple)
        return [product, Launch(kernels.sum_splits, (-(-count // _SUM_BLOCK),), arguments, constants, {"num_warps": 4})]

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        """Extents of the first launch."""
        raise NotImplementedError

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        """What only this kernel is compiled with."""
        raise NotImplementedError


class SplitKInt4(_SplitInt4):
    """Tensor cores on raw 4-bit numbers, scaled after each group; K split over programs; for batched decode."""

    name = "triton.splitk"
    kernel = kernels.splitk

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from _reasons(problem, device, 16)
        if problem.m > 512:
            yield f"m={problem.m} keeps every SM busy without splitting k (limit 512)"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, split, warps, steps loaded ahead, and which operand comes first."""
        space = Space(
            BLOCK_N=[32, 64, 128],
            BLOCK_K=_blocks_k(problem, [64, 128]) or _blocks_k(problem, [32]) or [16],
            SPLIT_K=[1, 2, 4, 8],
            SWAP=[False, True],
            num_warps=[4, 8],
            num_stages=[3, 5],
        )
        rows = self.block_m(problem)

        def registers(config: Config) -> bool:
            live = 2 * rows * config["BLOCK_N"] + config["BLOCK_K"] * config["BLOCK_N"]
            return fits_registers(live, config["num_warps"], device, share=0.8)

        def shape(config: Config) -> bool:
            narrow = config["BLOCK_N"] == 32
            return not narrow or (config["num_warps"] == 4 and not config["SWAP"])

        return (
            space.require("every split has work", lambda config: _every_split_works(problem, config))
            .require("accumulators and weights fit in registers", registers)
            .require("tiles 32 wide take 4 warps and do not swap", shape)
            .require("the tiles fit in shared memory", lambda config: _fits(problem, config, rows, device))
        )

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles 64 wide, and splits until every SM has about two programs."""
        tiles = -(-problem.n // 64) * -(-problem.m // self.block_m(problem))

        def distance(config: Config) -> tuple[float, ...]:
            programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
            return (
                abs(config["BLOCK_N"] - 64), abs(min(programs, 8) - 2),
                -config["BLOCK_K"], config["SWAP"], config["num_warps"], config["num_stages"],
            )  # fmt: skip

        return min(self.space(problem, device).configs, key=distance)

    def preference(self, problem: Problem, device: Device) -> float:
        """For the few rows of batched decode."""
        return 1.5 if problem.m <= 64 else 0.25

    def block_m(self, problem: Problem) -> int:
        """Rows of a tile: all of them up to 64, at least the tensor cores' 16."""
        return max(16, min(64, next_power_of_2(problem.m)))

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        tiles = -(-problem.m // self.block_m(problem)) * -(-problem.n // config["BLOCK_N"])
        return (tiles, config["SPLIT_K"])

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        return {"BLOCK_M": self.block_m(problem), "SWAP": config["SWAP"], **_precision(problem)}


class GemvInt4(_SplitInt4):
    """Multiply-adds without tensor cores at the speed at which the weights arrive; for one user or a few."""

    name = "triton.gemv"
    kernel = kernels.gemv

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from _reasons(problem, device, 8)
        if problem.m > _MAX_GEMV_ROWS:
            yield f"m={problem.m} rows are too many without tensor cores (limit {_MAX_GEMV_ROWS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns and k's of a step, split, warps, steps loaded ahead."""
        blocks_k = sorted(_blocks_k(problem, [256, 128, 64, 32, 16, 8])[:2])
        space = Space(
            BLOCK_N=[32, 64, 128, 256], BLOCK_K=blocks_k, SPLIT_K=[1, 2, 4, 8], num_warps=[2, 4, 8], num_stages=[1, 3]
        )

        def words(config: Config) -> bool:
            share = elements_per_thread(config["BLOCK_K"] // 8 * config["BLOCK_N"], config["num_warps"], device)
            return share <= 16 and (share >= 2 or config["num_warps"] == 2)

        return (
            space.require("every split has work", lambda config: _every_split_works(problem, config))
            .require("2 to 16 words a thread", words)
            .require("the words loaded ahead fit in shared memory", lambda config: _fits(problem, config, 0, device))
        )

    def default(self, problem: Problem, device: Device) -> Config:
        """4 warps on 64 columns, and splits until every SM has about four programs."""
        tiles = -(-problem.n // 64) * problem.m

        def distance(config: Config) -> tuple[float, ...]:
            programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
            return (
                abs(config["BLOCK_N"] - 64), abs(min(programs, 16) - 4),
                -config["BLOCK_K"], abs(config["num_warps"] - 4), -config["num_stages"],
            )  # fmt: skip

        return min(self.space(problem, device).configs, key=distance)

    def preference(self, problem: Problem, device: Device) -> float:
        """Best for one user; every further row unpacks all weights again."""
        return 2.0 if problem.m == 1 else 1.0 if problem.m == 2 else 0.1

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        return (problem.m, -(-problem.n // config["BLOCK_N"]), config["SPLIT_K"])

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        return {}

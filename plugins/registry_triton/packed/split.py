"""Weight-only matrix products with K split over programs: for batched decode, and for one user."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import (
    elements_per_thread,
    fits_registers,
    next_power_of_2,
    programs_per_multiprocessor,
    row_multiple,
)

from ..kernels import packed_gemm as kernels
from ..support import KEPT, options
from .problems import PackedGemm, fits, least_dot, precision

_SUM_BLOCK = 1024
_MOST_GEMV_ROWS = 4
_MOST_SPLIT_ROWS = 512


def _span(k: int, config: Config) -> int:
    """The k's of each split: whole blocks."""
    blocks = -(-k // config["BLOCK_K"])
    return int(-(-blocks // config["SPLIT_K"])) * int(config["BLOCK_K"])


def every_split_works(k: int, config: Config) -> bool:
    return bool((config["SPLIT_K"] - 1) * _span(k, config) < k)


class SplitProduct(PackedGemm):
    """Base of split-K kernels: fp32 partial products in scratch, added by a second launch in a fixed order."""

    kernel: Any

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        if config["SPLIT_K"] == 1:
            return {}
        return {"partial": TensorSpec.contiguous((config["SPLIT_K"], problem.m, problem.n), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        split = config["SPLIT_K"]
        operands = (*self.operands(problem), "bias", problem.m, problem.n, problem.k, _span(problem.k, config))
        bias = bool(problem.bias) and split == 1
        product = Launch(
            self.kernel,
            grid=self.grid(problem, config),
            args=("y" if split == 1 else "partial", "a", *operands),
            constants={**self.loop_constants(problem, config, bias), **self.constants(problem, config)},
            options=options(config),
        )
        if split == 1:
            return [product]
        count, multiple = problem.m * problem.n, row_multiple(problem.n)
        constants = {
            "MULTIPLE": multiple,
            "N": problem.n if problem.bias else 1,
            "SPLIT_K": split,
            "BIAS": bool(problem.bias),
            "BLOCK": _SUM_BLOCK,
        }
        arguments = ("y", "partial", "bias", count // multiple)
        return [product, Launch(kernels.sum_splits, (-(-count // _SUM_BLOCK),), arguments, constants, {"num_warps": 4})]

    @abstractmethod
    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        """Extents of the first launch."""

    @abstractmethod
    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        """The constants of this kernel alone, beside those that all kernels with a loop over K have."""


class SplitKGemm(SplitProduct):
    """Tensor cores on centred levels, scaled after each group; K split over programs; for batched decode."""

    name = "triton.splitk"
    kernel = kernels.splitk

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.m > _MOST_SPLIT_ROWS:
            yield f"m={problem.m} keeps every SM busy without splitting k (limit {_MOST_SPLIT_ROWS})"

    def blocks(self, problem: Problem) -> tuple[int, ...]:
        """64 and 128 k's, or what the groups allow."""
        least = least_dot(self.per_word)
        wide = self.within_groups(problem, (64, 128), least)
        return wide or self.within_groups(problem, (32,), least) or self.within_groups(problem, (16, 32), least)

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, split, warps, steps loaded ahead, and which operand comes first."""
        size = problem.torch_dtype.itemsize
        return _splitk_space(problem.k, self.block_m(problem), self.blocks(problem), size, self.per_word, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles 64 wide, and splits until every SM has about two programs."""
        tiles = -(-problem.n // 64) * -(-problem.m // self.block_m(problem))
        return _nearest_splitk(self.space(problem, device), tiles, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """First for the few rows of batched decode."""
        return 1.5 if problem.m <= 64 else 0.25

    def block_m(self, problem: Problem) -> int:
        """Rows of a tile: all of them up to 64, at least the tensor cores' 16."""
        return max(16, min(64, next_power_of_2(problem.m)))

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        tiles = -(-problem.m // self.block_m(problem)) * -(-problem.n // config["BLOCK_N"])
        return (tiles, config["SPLIT_K"])

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        return {"BLOCK_M": self.block_m(problem), "SWAP": config["SWAP"], **precision(problem)}


class Gemv(SplitProduct):
    """Multiply-adds without tensor cores at the speed at which the weights arrive; for one user or a few."""

    name = "triton.gemv"
    kernel = kernels.gemv

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.m > _MOST_GEMV_ROWS:
            yield f"m={problem.m} rows are too many without tensor cores (limit {_MOST_GEMV_ROWS})"

    def blocks(self, problem: Problem) -> tuple[int, ...]:
        """The two longest blocks that the groups allow, the shorter one first."""
        return self.within_groups(problem, (256, 128, 64, 32, 16, 8), self.per_word)[:2][::-1]

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns and k's of a step, split, warps, steps loaded ahead."""
        size = problem.torch_dtype.itemsize
        return _gemv_space(problem.k, self.blocks(problem), size, self.per_word, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """4 warps on 64 columns, and splits until every SM has about four programs."""
        return _nearest_gemv(self.space(problem, device), -(-problem.n // 64) * problem.m, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Best for one user; every further row unpacks all weights again."""
        return 2.0 if problem.m == 1 else 1.0 if problem.m == 2 else 0.1

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        return (problem.m, -(-problem.n // config["BLOCK_N"]), config["SPLIT_K"])

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        return {"CENTRED": problem.dtype == "float32"}


@lru_cache(maxsize=KEPT)
def _splitk_space(k: int, rows: int, blocks_k: tuple[int, ...], itemsize: int, per_word: int, device: Device) -> Space:
    def registers(config: Config) -> bool:
        live = 2 * rows * config["BLOCK_N"] + config["BLOCK_K"] * config["BLOCK_N"]
        return fits_registers(live, config["num_warps"], device, share=0.8)

    def shape(config: Config) -> bool:
        narrow = config["BLOCK_N"] == 32
        return not narrow or (config["num_warps"] == 4 and not config["SWAP"])

    return (
        Space(
            BLOCK_N=[32, 64, 128],
            BLOCK_K=blocks_k,
            SPLIT_K=[1, 2, 4, 8],
            SWAP=[False, True],
            num_warps=[4, 8],
            num_stages=[3, 5],
        )
        .require("every split has work", lambda config: every_split_works(k, config))
        .require("accumulators and weights fit in registers", registers)
        .require("tiles 32 wide take 4 warps and do not swap", shape)
        .require("the tiles fit in shared memory", lambda config: fits(itemsize, config, rows, per_word, device))
    )


@lru_cache(maxsize=KEPT)
def _nearest_splitk(space: Space, tiles: int, device: Device) -> Config:
    """The configuration of tiles 64 wide with about two programs an SM; ``tiles`` is how many tiles there are."""

    def distance(config: Config) -> tuple[float, ...]:
        programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
        return (
            abs(config["BLOCK_N"] - 64), abs(min(programs, 8) - 2),
            -config["BLOCK_K"], config["SWAP"], config["num_warps"], config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)


@lru_cache(maxsize=KEPT)
def _gemv_space(k: int, blocks_k: tuple[int, ...], itemsize: int, per_word: int, device: Device) -> Space:
    def words(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK_K"] // per_word * config["BLOCK_N"], config["num_warps"], device)
        return share <= 16 and (share >= 2 or config["num_warps"] == 2)

    return (
        Space(
            BLOCK_N=[32, 64, 128, 256], BLOCK_K=blocks_k, SPLIT_K=[1, 2, 4, 8], num_warps=[2, 4, 8], num_stages=[1, 3]
        )
        .require("every split has work", lambda config: every_split_works(k, config))
        .require("2 to 16 words a thread", words)
        .require(
            "the words loaded ahead fit in shared memory", lambda config: fits(itemsize, config, 0, per_word, device)
        )
    )


@lru_cache(maxsize=KEPT)
def _nearest_gemv(space: Space, tiles: int, device: Device) -> Config:
    """The configuration of 64 columns with about four programs an SM; ``tiles`` is how many tiles there are."""

    def distance(config: Config) -> tuple[float, ...]:
        programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
        return (
            abs(config["BLOCK_N"] - 64), abs(min(programs, 16) - 4),
            -config["BLOCK_K"], abs(config["num_warps"] - 4), -config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

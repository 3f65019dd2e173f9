"""4-bit weight-only matrix product with K split over programs: for batched decode, and for one user."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
from registry.backends.triton import TritonImplementation

from . import int4
from .kernels import gemm_int4 as kernels
from .support import KEPT, options

_SUM_BLOCK = 1024
_MAX_GEMV_ROWS = 4


def _span(k: int, config: Config) -> int:
    """The k's of each split: whole blocks."""
    blocks = -(-k // config["BLOCK_K"])
    return int(-(-blocks // config["SPLIT_K"])) * int(config["BLOCK_K"])


def _every_split_works(k: int, config: Config) -> bool:
    return bool((config["SPLIT_K"] - 1) * _span(k, config) < k)


class _SplitInt4(TritonImplementation):
    """Base of split-K kernels: fp32 partial products in scratch, added by a second launch in a fixed order."""

    op = "gemm_int4"
    kernel: Any

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        if config["SPLIT_K"] == 1:
            return {}
        return {"partial": TensorSpec.contiguous((config["SPLIT_K"], problem.m, problem.n), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        split = config["SPLIT_K"]
        operands = ("a", "qweight", "scales", "zeros", problem.m, problem.n, problem.k, _span(problem.k, config))
        product = Launch(
            self.kernel,
            grid=self.grid(problem, config),
            args=("y" if split == 1 else "partial", *operands),
            constants={**int4.shared_constants(problem, config), **self.constants(problem, config)},
            options=options(config),
        )
        if split == 1:
            return [product]
        count = problem.m * problem.n
        multiple = row_multiple(problem.n)
        constants = {"MULTIPLE": multiple, "SPLIT_K": split, "BLOCK": _SUM_BLOCK}
        arguments = ("y", "partial", count // multiple)
        return [product, Launch(kernels.sum_splits, (-(-count // _SUM_BLOCK),), arguments, constants, {"num_warps": 4})]

    @abstractmethod
    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        """Extents of the first launch."""

    @abstractmethod
    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        """The constants of this kernel alone, beside those that all split-K kernels have."""


class SplitKInt4(_SplitInt4):
    """Tensor cores on raw 4-bit numbers, scaled after each group; K split over programs; for batched decode."""

    name = "triton.splitk"
    kernel = kernels.splitk

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from int4.reasons(problem, device, 16)
        if problem.m > 512:
            yield f"m={problem.m} keeps every SM busy without splitting k (limit 512)"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, split, warps, steps loaded ahead, and which operand comes first."""
        blocks_k = int4.blocks_k(problem, (64, 128)) or int4.blocks_k(problem, (32,)) or (16,)
        return _splitk_space(problem.k, self.block_m(problem), blocks_k, problem.torch_dtype.itemsize, device)

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
        return {"BLOCK_M": self.block_m(problem), "SWAP": config["SWAP"], **int4.precision(problem)}


class GemvInt4(_SplitInt4):
    """Multiply-adds without tensor cores at the speed at which the weights arrive; for one user or a few."""

    name = "triton.gemv"
    kernel = kernels.gemv

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from int4.reasons(problem, device, 8)
        if problem.m > _MAX_GEMV_ROWS:
            yield f"m={problem.m} rows are too many without tensor cores (limit {_MAX_GEMV_ROWS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns and k's of a step, split, warps, steps loaded ahead."""
        blocks_k = int4.blocks_k(problem, (256, 128, 64, 32, 16, 8))[:2]
        return _gemv_space(problem.k, blocks_k[::-1], problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """4 warps on 64 columns, and splits until every SM has about four programs."""
        return _nearest_gemv(self.space(problem, device), -(-problem.n // 64) * problem.m, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Best for one user; every further row unpacks all weights again."""
        return 2.0 if problem.m == 1 else 1.0 if problem.m == 2 else 0.1

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        return (problem.m, -(-problem.n // config["BLOCK_N"]), config["SPLIT_K"])

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        return {}


@lru_cache(maxsize=KEPT)
def _splitk_space(k: int, rows: int, blocks_k: tuple[int, ...], itemsize: int, device: Device) -> Space:
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
        .require("every split has work", lambda config: _every_split_works(k, config))
        .require("accumulators and weights fit in registers", registers)
        .require("tiles 32 wide take 4 warps and do not swap", shape)
        .require("the tiles fit in shared memory", lambda config: int4.fits(itemsize, config, rows, device))
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
def _gemv_space(k: int, blocks_k: tuple[int, ...], itemsize: int, device: Device) -> Space:
    def words(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK_K"] // 8 * config["BLOCK_N"], config["num_warps"], device)
        return share <= 16 and (share >= 2 or config["num_warps"] == 2)

    return (
        Space(
            BLOCK_N=[32, 64, 128, 256], BLOCK_K=blocks_k, SPLIT_K=[1, 2, 4, 8], num_warps=[2, 4, 8], num_stages=[1, 3]
        )
        .require("every split has work", lambda config: _every_split_works(k, config))
        .require("2 to 16 words a thread", words)
        .require("the words loaded ahead fit in shared memory", lambda config: int4.fits(itemsize, config, 0, device))
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

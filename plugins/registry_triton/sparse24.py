"""Products with 2:4 sparse weights in Triton: tiles for prefill, K split over programs for batched decode, one user."""

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
    fits_shared,
    next_power_of_2,
    programs_per_multiprocessor,
)
from registry.backends.triton import TritonImplementation

from .kernels import linear, sparse24
from .support import KEPT, common_reasons, options

_MAX_GEMV_ROWS = 4
_MAX_SPLIT_ROWS = 128


def _steps(k: int, config: Config) -> int:
    """Blocks of K that each split does."""
    return -(-k // int(config["BLOCK_K"] * config.get("SPLIT_K", 1)))


def _every_split_works(k: int, config: Config) -> bool:
    split = config["SPLIT_K"]
    return bool(split == 1 or (split - 1) * _steps(k, config) * config["BLOCK_K"] < k)


class _Sparse24(TritonImplementation):
    """Base: one product; of several splits fp32 partial products in scratch, added by a second launch."""

    op = "gemm_sparse24"
    kernel: Any

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        split = config.get("SPLIT_K", 1)
        if split == 1:
            return {}
        return {"partial": TensorSpec.contiguous((split, problem.m, problem.n), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        m, n, k, split = problem.m, problem.n, problem.k, config.get("SPLIT_K", 1)
        constants = {
            "ADD_BIAS": problem.bias and split == 1,
            "EVEN_K": k % config["BLOCK_K"] == 0,
            "BLOCK_N": config["BLOCK_N"],
            "BLOCK_K": config["BLOCK_K"],
            "STAGES": config["num_stages"],
            **self.constants(problem, config),
        }
        product = Launch(
            self.kernel,
            grid=self.grid(problem, config),
            args=("y" if split == 1 else "partial", "x", "values", "meta", "bias", m, n, k, _steps(k, config)),
            constants=constants,
            options=options(config),
        )
        if split == 1:
            return [product]
        block = min(1024, next_power_of_2(n))
        total = Launch(
            linear.sum_splits,
            grid=(m, -(-n // block)),
            args=("y", "partial", "bias", m, n),
            constants={"ADD_BIAS": problem.bias, "SPLIT_K": split, "BLOCK": block},
            options={"num_warps": 4},
        )
        return [product, total]

    @abstractmethod
    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        """Extents of the first launch."""

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        """The constants of this kernel alone, beside those that all have."""
        return {}


class _Tiled(_Sparse24):
    """Tiles on the tensor cores."""

    kernel = sparse24.gemm

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        tiles = -(-problem.m // self.block_m(problem, config)) * -(-problem.n // config["BLOCK_N"])
        return (tiles, config.get("SPLIT_K", 1))

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        # tf32 would keep 10 of fp32's 23 bits
        precision = "ieee" if problem.dtype == "float32" else "tf32"
        tile = {"BLOCK_M": self.block_m(problem, config), "GROUP_M": 8, "SWAP": config["SWAP"]}
        return {**tile, "PRECISION": precision}

    @abstractmethod
    def block_m(self, problem: Problem, config: Config) -> int:
        """Rows of a tile."""


class TiledSparse24(_Tiled):
    """Tiles in bands of rows that share the weights which L2 holds; for prefill."""

    name = "triton.gemm"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, which operand comes first, warps, and how many steps are loaded ahead."""
        tall = max(16, min(128, next_power_of_2(problem.m)))
        return _gemm_space(tall, problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A tile of up to 128 by 128, 64 deep, the weight second."""
        return _nearest_gemm(self.space(problem, device))

    def preference(self, problem: Problem, device: Device) -> float:
        """Expanding the weight in each tile of rows is no more work than writing it out for up to a few of them."""
        return 0.5 if 64 < problem.m <= 256 else -0.5

    def block_m(self, problem: Problem, config: Config) -> int:
        return int(config["BLOCK_M"])


class SplitKSparse24(_Tiled):
    """Tiles with K split over programs; for batched decode."""

    name = "triton.splitk"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.m > _MAX_SPLIT_ROWS:
            yield f"m={problem.m} keeps every SM busy without splitting k (limit {_MAX_SPLIT_ROWS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, split, which operand comes first, warps, and steps loaded ahead."""
        return _splitk_space(problem.k, self.block_m(problem, {}), problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles 64 wide, and splits until every SM has about two programs."""
        tiles = -(-problem.n // 64) * -(-problem.m // self.block_m(problem, {}))
        return _nearest_splitk(self.space(problem, device), tiles, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """First for the few rows of batched decode."""
        return 1.0 if problem.m <= 64 else 0.25

    def block_m(self, problem: Problem, config: Config) -> int:
        """All rows up to 64, at least the tensor cores' 16."""
        return max(16, min(64, next_power_of_2(problem.m)))


class GemvSparse24(_Sparse24):
    """Multiply-adds of what is kept at the speed at which it arrives; for one user or a few."""

    name = "triton.gemv"
    kernel = sparse24.gemv

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.m > _MAX_GEMV_ROWS:
            yield f"m={problem.m} rows are too many without tensor cores (limit {_MAX_GEMV_ROWS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Outputs and k's of a step, split, warps, steps loaded ahead."""
        return _gemv_space(problem.k, problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """4 warps on 8 outputs, and splits until every SM has about eight programs."""
        return _nearest_gemv(self.space(problem, device), -(-problem.n // 8) * problem.m, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Best for one user; every further row reads and expands all weights again."""
        return 2.0 if problem.m == 1 else 0.5

    def grid(self, problem: Problem, config: Config) -> tuple[int, ...]:
        return (problem.m, -(-problem.n // config["BLOCK_N"]), config["SPLIT_K"])


def _tiles_fit(rows: int, config: Config, itemsize: int, device: Device) -> bool:
    """Whether the tiles of x and of what is kept that are loaded ahead, and the dense tile, fit in shared memory."""
    columns, ahead = config["BLOCK_N"] * config["BLOCK_K"] * itemsize, config["num_stages"]
    return fits_shared(ahead * (rows * config["BLOCK_K"] * itemsize + columns) + columns, device)


def _expanded_fits(rows: int, config: Config, device: Device) -> bool:
    """Whether the accumulators, and the dense tile with its halves, fit in registers."""
    live = config["BLOCK_N"] * (rows + config["BLOCK_K"])
    return fits_registers(live, config["num_warps"], device, share=0.7)


@lru_cache(maxsize=KEPT)
def _gemm_space(tall: int, itemsize: int, device: Device) -> Space:
    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if tall // 4 <= block <= tall],
            BLOCK_N=[64, 128],
            BLOCK_K=[32, 64],
            SWAP=[False, True],
            num_warps=[4, 8],
            num_stages=[2, 3, 4],
        )
        .require("tiles fit in registers", lambda config: _expanded_fits(config["BLOCK_M"], config, device))
        .require("8 warps have 128 columns", lambda config: config["num_warps"] == 4 or config["BLOCK_N"] == 128)
        .require(
            "the tiles fit in shared memory", lambda config: _tiles_fit(config["BLOCK_M"], config, itemsize, device)
        )
    )


@lru_cache(maxsize=KEPT)
def _nearest_gemm(space: Space) -> Config:
    """The configuration nearest to a tile of 128 by 128, 64 deep."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["BLOCK_M"] - 128), abs(config["BLOCK_N"] - 128), abs(config["BLOCK_K"] - 64), config["SWAP"],
            config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4), abs(config["num_stages"] - 3),
        )  # fmt: skip

    return min(space.configs, key=distance)


@lru_cache(maxsize=KEPT)
def _splitk_space(k: int, rows: int, itemsize: int, device: Device) -> Space:
    return (
        Space(
            BLOCK_N=[32, 64, 128],
            BLOCK_K=[64, 128] if itemsize == 2 else [32, 64],
            SPLIT_K=[1, 2, 4, 8],
            SWAP=[False, True],
            num_warps=[4, 8],
            num_stages=[3, 5],
        )
        .require("every split has work", lambda config: _every_split_works(k, config))
        .require("tiles fit in registers", lambda config: _expanded_fits(rows, config, device))
        .require("tiles 32 wide do not swap", lambda config: config["BLOCK_N"] >= 64 or not config["SWAP"])
        .require("8 warps have 128 columns", lambda config: config["num_warps"] == 4 or config["BLOCK_N"] == 128)
        .require("the tiles fit in shared memory", lambda config: _tiles_fit(rows, config, itemsize, device))
    )


@lru_cache(maxsize=KEPT)
def _nearest_splitk(space: Space, tiles: int, device: Device) -> Config:
    """The configuration of tiles 64 wide with about two programs an SM; ``tiles`` is how many tiles there are."""

    def distance(config: Config) -> tuple[float, ...]:
        programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
        return (
            abs(config["BLOCK_N"] - 64), abs(min(programs, 8) - 2), -config["BLOCK_K"],
            config["SWAP"], config["num_warps"], config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)


@lru_cache(maxsize=KEPT)
def _gemv_space(k: int, itemsize: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        each = elements_per_thread(config["BLOCK_K"] // 2 * config["BLOCK_N"], config["num_warps"], device)
        return 8 <= each <= 32

    def held(config: Config) -> bool:
        return fits_shared(config["num_stages"] * (config["BLOCK_N"] + 1) * config["BLOCK_K"] * itemsize, device)

    return (
        Space(
            BLOCK_N=[1, 4, 8, 16],
            BLOCK_K=[256, 512, 1024],
            SPLIT_K=[1, 2, 4, 8],
            num_warps=[1, 2, 4, 8],
            num_stages=[1, 3],
        )
        .require("every split has work", lambda config: _every_split_works(k, config))
        .require("8 to 32 values a thread", share)
        .require("what is loaded ahead fits in shared memory", held)
    )


@lru_cache(maxsize=KEPT)
def _nearest_gemv(space: Space, tiles: int, device: Device) -> Config:
    """The configuration of 8 outputs with about eight programs an SM; ``tiles`` is how many tiles there are."""

    def distance(config: Config) -> tuple[float, ...]:
        programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
        return (
            abs(config["BLOCK_N"] - 8), abs(min(programs, 32) - 8), abs(config["BLOCK_K"] - 512),
            abs(config["num_warps"] - 4), -config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

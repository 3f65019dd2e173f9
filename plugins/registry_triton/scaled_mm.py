"""Products of float8 and int8 operands in Triton: tiles for prefill, K split over programs for batched decode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import (
    fits_registers,
    fits_shared,
    next_power_of_2,
    programs_per_multiprocessor,
    threads,
)
from registry.backends.triton import INTERPRETED, TritonImplementation

from .kernels import scaled_mm as kernels
from .quantize import float8_reasons
from .support import KEPT, options

_BLOCK = 128
_SCALES = {"tensor": 0, "row": 1, "block": 2}
_MOST_SPLIT_ROWS = 128


def _steps(k: int, config: Config) -> int:
    """Blocks of K that each split does."""
    blocks = -(-k // config["BLOCK_K"])
    return int(-(-blocks // config.get("SPLIT_K", 1)))


class _ScaledMm(TritonImplementation):
    """Base: one product; of several splits raw partial products in scratch, added and scaled by a second launch."""

    op = "scaled_mm"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if not problem.traits["contiguous"]:
            yield "a tensor is not contiguous"
        yield from float8_reasons(problem.dtype, device)
        if device.type == "cuda" and (0, 0) < device.capability < (8, 0):
            yield f"compute capability {device.capability[0]}.{device.capability[1]} (needs 8.0)"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        split = config.get("SPLIT_K", 1)
        if split == 1:
            return {}
        exact = problem.dtype == "int8" and problem.scales != "block"
        dtype = torch.int32 if exact else torch.float32
        return {"partial": TensorSpec.contiguous((split, problem.m, problem.n), dtype)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        m, n, k, split = problem.m, problem.n, problem.k, config.get("SPLIT_K", 1)
        block_m, scales = self.block_m(problem, config), _SCALES[problem.scales]
        product = Launch(
            kernels.gemm,
            grid=(-(-m // block_m) * -(-n // config["BLOCK_N"]), split),
            args=("y" if split == 1 else "partial", "a", "b", "scale_a", "scale_b", "bias", m, n, k, _steps(k, config)),
            constants={
                "SCALES": scales,
                "INTEGER": problem.dtype == "int8",
                "LOSSY": min(config["BLOCK_K"], _BLOCK),
                "NAN": INTERPRETED and problem.dtype != "int8",
                "WHOLE": split == 1,
                "ADD_BIAS": problem.bias and split == 1,
                "EVEN_K": k % config["BLOCK_K"] == 0,
                "SWAP": config.get("SWAP", False),
                "BLOCK_M": block_m,
                "BLOCK_N": config["BLOCK_N"],
                "BLOCK_K": config["BLOCK_K"],
                "GROUP_M": config.get("GROUP_M", 8),
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )
        if split == 1:
            return [product]
        block = min(1024, next_power_of_2(n))
        total = Launch(
            kernels.sum_splits,
            grid=(m, -(-n // block)),
            args=("y", "partial", "scale_a", "scale_b", "bias", m, n),
            constants={"SCALES": scales, "ADD_BIAS": problem.bias, "SPLIT_K": split, "BLOCK": block},
            options={"num_warps": 4},
        )
        return [product, total]

    @abstractmethod
    def block_m(self, problem: Problem, config: Config) -> int:
        """Rows of a tile."""


class GemmScaledMm(_ScaledMm):
    """Tiles on the tensor cores, in bands of rows of tiles that share what of b L2 holds; for prefill."""

    name = "triton.gemm"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, height of a band, warps, and how many steps are loaded ahead."""
        return _gemm_space(max(16, min(256, next_power_of_2(problem.m))), problem.scales == "block", device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A tile of up to 128 by 128, 128 deep."""
        return _nearest_gemm(self.space(problem, device))

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads a byte an element, where dequantised operands take four; the vendor's kernels do so too."""
        return 0.5

    def block_m(self, problem: Problem, config: Config) -> int:
        return int(config["BLOCK_M"])


class SplitKScaledMm(_ScaledMm):
    """Tiles on the tensor cores with K split over programs; for batched decode."""

    name = "triton.splitk"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.m > _MOST_SPLIT_ROWS:
            yield f"m={problem.m} keeps every SM busy without splitting k (limit {_MOST_SPLIT_ROWS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, split, warps, steps loaded ahead, and which operand comes first."""
        return _splitk_space(problem.k, self.block_m(problem, {}), problem.scales == "block", device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles 64 wide, and splits until every SM has about two programs."""
        tiles = -(-problem.n // 64) * -(-problem.m // self.block_m(problem, {}))
        return _nearest_splitk(self.space(problem, device), tiles, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of whole tiles where few rows leave SMs idle."""
        return 0.75 if problem.m <= 64 else 0.25

    def block_m(self, problem: Problem, config: Config) -> int:
        """All rows up to 64, at least the tensor cores' 16."""
        return max(16, min(64, next_power_of_2(problem.m)))


def _tiles_fit(rows: int, config: Config, device: Device) -> bool:
    """Whether the tiles of a and b that are loaded ahead, a byte an element, fit in shared memory."""
    return fits_shared(config["num_stages"] * (rows + config["BLOCK_N"]) * config["BLOCK_K"], device)


@lru_cache(maxsize=KEPT)
def _gemm_space(tall: int, blocks: bool, device: Device) -> Space:
    def filled(config: Config) -> bool:
        return bool(config["BLOCK_M"] * config["BLOCK_N"] >= 32 * threads(config["num_warps"], device))

    def registers(config: Config) -> bool:
        # of blocks a second accumulator holds the product that is not yet scaled
        elements = config["BLOCK_M"] * config["BLOCK_N"] * (2 if blocks else 1)
        return fits_registers(elements, config["num_warps"], device, share=0.8 if blocks else 0.6)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128, 256) if tall // 4 <= block <= tall],
            BLOCK_N=[64, 128] if blocks else [64, 128, 256],
            BLOCK_K=[64, 128] if blocks else [64, 128, 256],
            GROUP_M=[4, 16],
            num_warps=[4, 8],
            num_stages=[3, 4],
        )
        .require("the accumulators fit in registers", registers)
        .require(
            "at least 32 accumulators a thread of 8 warps", lambda config: filled(config) or config["num_warps"] == 4
        )
        .require("the tiles fit in shared memory", lambda config: _tiles_fit(config["BLOCK_M"], config, device))
    )


@lru_cache(maxsize=KEPT)
def _nearest_gemm(space: Space) -> Config:
    """The configuration nearest to a tile of 128 by 128, 128 deep."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["BLOCK_M"] - 128), abs(config["BLOCK_N"] - 128), abs(config["BLOCK_K"] - 128),
            config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4), config["num_stages"], -config["GROUP_M"],
        )  # fmt: skip

    return min(space.configs, key=distance)


@lru_cache(maxsize=KEPT)
def _splitk_space(k: int, rows: int, blocks: bool, device: Device) -> Space:
    def works(config: Config) -> bool:
        split = config["SPLIT_K"]
        return split == 1 or bool((split - 1) * _steps(k, config) * config["BLOCK_K"] < k)

    def shape(config: Config) -> bool:
        return config["BLOCK_N"] >= 64 or (config["num_warps"] == 4 and not config["SWAP"])

    return (
        Space(
            BLOCK_N=[32, 64, 128],
            BLOCK_K=[128] if blocks else [128, 256],
            SPLIT_K=[1, 2, 4, 8],
            SWAP=[False, True],
            num_warps=[4, 8],
            num_stages=[3, 5],
        )
        .require("every split has work", works)
        .require("tiles 32 wide take 4 warps and do not swap", shape)
        .require("8 warps have 128 columns", lambda config: config["num_warps"] == 4 or config["BLOCK_N"] == 128)
        .require("the tiles fit in shared memory", lambda config: _tiles_fit(rows, config, device))
    )


@lru_cache(maxsize=KEPT)
def _nearest_splitk(space: Space, tiles: int, device: Device) -> Config:
    """The configuration of tiles 64 wide with about two programs an SM; ``tiles`` is how many tiles there are."""

    def distance(config: Config) -> tuple[float, ...]:
        programs = programs_per_multiprocessor(tiles * config["SPLIT_K"], device)
        return (
            abs(config["BLOCK_N"] - 64), abs(min(programs, 8) - 2), config["BLOCK_K"],
            config["SWAP"], config["num_warps"], config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

"""Weight-only matrix products for prefill: tiles on the tensor cores, or the weight written out and then cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.artifact import Built, Signature
from registry.backends.estimate import fits_registers, next_power_of_2, threads
from registry.implementation import Run, Tensors

from ..kernels import packed_gemm as kernels
from ..support import KEPT, options
from .problems import PackedGemm, fits, least_dot, precision

WEIGHT = "weight"


class TiledGemm(PackedGemm):
    """Tiles on the tensor cores, weights dequantised to the activations' dtype in registers; for prefill."""

    name = "triton.gemm"

    def blocks(self, problem: Problem) -> tuple[int, ...]:
        """32 to 128 k's, of several groups too where these are short."""
        wanted = (32, 64, 128)
        if self.per_channel(problem) or problem.group_size >= min(wanted):
            return self.within_groups(problem, wanted, least_dot(self.per_word))
        return tuple([block for block in wanted if block % problem.group_size == 0])

    def space(self, problem: Problem, device: Device) -> Space:
        """Tile, warps, and how many steps are loaded ahead."""
        tall = max(16, min(128, next_power_of_2(problem.m)))
        return _space(tall, self.blocks(problem), problem.torch_dtype.itemsize, self.per_word, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tallest tile, 128 wide, 64 deep."""
        return _nearest(self.space(problem, device), 128 if problem.m > 16 else 64)

    def preference(self, problem: Problem, device: Device) -> float:
        """Beats dequantise-then-matmul up to a few hundred rows, where reading the weights is most of the work."""
        return 0.75 if 64 < problem.m <= 512 else -0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tiles = -(-problem.m // config["BLOCK_M"]) * -(-problem.n // config["BLOCK_N"])
        constants = {"BLOCK_M": config["BLOCK_M"], "GROUP_M": 8, **precision(problem)}
        return Launch(
            kernels.gemm,
            grid=(tiles,),
            args=("y", "a", *self.operands(problem), "bias", problem.m, problem.n, problem.k),
            constants={**self.loop_constants(problem, config, problem.bias), **constants},
            options=options(config),
        )


class DequantizedGemm(PackedGemm):
    """The weight in the activations' dtype, ``[K, N]`` in scratch, by one kernel; then ``torch.mm``.

    Reading and writing the weight costs as much whatever M is, so that it is for many rows.
    """

    name = "triton.dequantized"
    any_size = True

    def blocks(self, problem: Problem) -> tuple[int, ...]:
        return self.within_groups(problem, (8, 16, 32, 64, 128), self.per_word)

    def space(self, problem: Problem, device: Device) -> Space:
        """The tile of the weight that a program writes, and its warps."""
        return _written_space(self.blocks(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """32 by 128, or the tile nearest to it that the groups allow."""
        return {"BLOCK_K": min(self.blocks(problem), key=lambda block: abs(block - 32)), "BLOCK_N": 128, "num_warps": 4}

    def preference(self, problem: Problem, device: Device) -> float:
        """From some 160 rows on faster than products that expand the weight anew for each tile of rows."""
        return 0.9 if problem.m > 144 else -0.25

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {WEIGHT: TensorSpec.contiguous((problem.k, problem.n), problem.torch_dtype)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            kernels.dequantize,
            grid=(-(-problem.n // config["BLOCK_N"]), -(-problem.k // config["BLOCK_K"])),
            args=(WEIGHT, *self.operands(problem), problem.n, problem.k),
            constants={
                **self.format_constants(problem),
                "BLOCK_N": config["BLOCK_N"],
                "BLOCK_K": config["BLOCK_K"],
            },
            options=options(config),
        )

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return _ThenMultiplied(super().bind(problem, config, device, built), problem)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        written = like.written if isinstance(like, _ThenMultiplied) else None
        found = super().bind_loaded(problem, config, device, signature, written)
        return None if found is None else _ThenMultiplied(found, problem)


class _ThenMultiplied:
    """Writes the weight by ``written``, then multiplies."""

    def __init__(self, written: Run, problem: Problem) -> None:
        self.written = written
        self._n, self._k = int(problem.n), int(problem.k)
        self._bias = bool(problem.bias)

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        self.written(outputs, arguments, scratch)
        rows, y = arguments[0].view(-1, self._k), outputs[0].view(-1, self._n)
        if self._bias:
            torch.addmm(arguments[9], rows, scratch[0], out=y)
        else:
            torch.mm(rows, scratch[0], out=y)


@lru_cache(maxsize=KEPT)
def _space(tall: int, blocks_k: tuple[int, ...], itemsize: int, per_word: int, device: Device) -> Space:
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
            "the tiles fit in shared memory", lambda config: fits(itemsize, config, config["BLOCK_M"], per_word, device)
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


@lru_cache(maxsize=KEPT)
def _written_space(blocks_k: tuple[int, ...], device: Device) -> Space:
    space = Space(BLOCK_K=blocks_k, BLOCK_N=[64, 128, 256], num_warps=[4, 8])

    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_K"] * config["BLOCK_N"], config["num_warps"], device, share=0.8)

    return space.require("a tile fits in registers", registers)

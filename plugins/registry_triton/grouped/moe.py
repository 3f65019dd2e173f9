"""fused_moe on the tensor cores: pairs of token and expert are sorted, multiplied by tiles twice, and summed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import fits_registers, fits_shared, next_power_of_2, threads
from registry.backends.triton import TritonImplementation
from registry.problem import TensorSpec

from ..support import KEPT, options
from .kernels import expert_order, moe
from .tiles import most_tiles, precision, reasons, search_constants

FUNCTIONS: Mapping[str, str] = {"silu": "silu", "gelu": "none", "gelu_tanh": "tanh"}
"""The kernels' names of activations."""

_SORT_BLOCK = 4096
"""Ids that a program of the sort reads at a time: of a prompt of 8192 tokens with 8 experts each, sixteen times."""
_SUM_BLOCK = 1024
_SWAPPED_ROWS = 32
"""Rows of a tile up to which the weights may be the left operand: wgmma has 64 rows on the left."""
_CUTLASS_ROWS = 64
"""Pairs an expert from which torch's grouped products go first, untuned. Below, reading the weights takes the time."""


class TiledMoe(TritonImplementation):
    """Four launches: sort, gate and up with the activation, down with the router's weights, and each token's sum.

    Grids are bounded by the number of pairs, so that nothing waits for the ids. Tokens are gathered as they are loaded;
    gate and up are never written.
    """

    op = "fused_moe"
    name = "triton.gemm"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows of a tile, its columns of gate and up and of the result, depth, band, warps, and steps loaded ahead."""
        return _space(_share(problem, 2), problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as high as an expert's share of the pairs, 128 columns of weights wide, 64 deep."""
        return _nearest(self.space(problem, device), _share(problem, 1), 64 if problem.dtype == "float32" else 128)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before torch's grouped products for few pairs an expert, behind them for many."""
        return 0.75 if problem.tokens * problem.top_k < _CUTLASS_ROWS * problem.experts else 0.25

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        pairs, dtype = problem.tokens * problem.top_k, problem.torch_dtype
        return {
            "order": TensorSpec.contiguous((pairs,), torch.int32),
            "offsets": TensorSpec.contiguous((problem.experts + 1,), torch.int32),
            "inner": TensorSpec.contiguous((pairs, problem.intermediate), dtype),
            "parts": TensorSpec.contiguous((pairs, problem.hidden), dtype),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        pairs, experts, hidden = problem.tokens * problem.top_k, problem.experts, problem.hidden
        block = min(_SUM_BLOCK, next_power_of_2(hidden))
        return [
            Launch(
                expert_order.sort_pairs,
                grid=(experts,),
                args=("order", "offsets", "topk_ids", pairs),
                constants={"EXPERTS": experts, "BLOCK": _SORT_BLOCK},
                options={"num_warps": 8},
            ),
            *_products(problem, config),
            Launch(
                expert_order.sum_pairs,
                grid=(problem.tokens, -(-hidden // block)),
                args=("y", "parts", "topk_ids", hidden),
                constants={"EXPERTS": experts, "TOP_K": problem.top_k, "BLOCK": block},
                options={"num_warps": 4},
            ),
        ]


def _products(problem: Problem, config: Config) -> list[Launch]:
    """Gate and up, then down."""
    pairs, hidden, width = problem.tokens * problem.top_k, problem.hidden, problem.intermediate
    tiles = most_tiles(pairs, problem.experts, config["BLOCK_M"])
    constants = {
        **search_constants(problem),
        **precision(problem),
        **{name: config[name] for name in ("SWAP", "BLOCK_M", "BLOCK_K", "GROUP_M")},
        "STAGES": config["num_stages"],
    }
    sizes, into, back = (pairs, tiles, hidden, width), config["BLOCK_N"], config["DOWN_N"]
    return [
        Launch(
            moe.gate_up,
            grid=(tiles * -(-width // into),),
            args=("inner", "x", "w13", "order", "offsets", *sizes),
            constants={
                **constants,
                "TOP_K": problem.top_k,
                "FUNCTION": FUNCTIONS[problem.activation],
                "EVEN_K": hidden % config["BLOCK_K"] == 0,
                "BLOCK_N": into,
            },
            options=options(config),
        ),
        Launch(
            moe.down,
            grid=(tiles * -(-hidden // back),),
            args=("parts", "inner", "w2", "topk_weights", "order", "offsets", *sizes),
            constants={**constants, "EVEN_K": width % config["BLOCK_K"] == 0, "BLOCK_N": back},
            options=options(config),
        ),
    ]


def _share(problem: Problem, times: int) -> int:
    """Rows of a tile, a power of two from 16 to 128: an expert's share of the pairs, times ``times``."""
    each = times * problem.tokens * problem.top_k // problem.experts
    return max(16, min(128, next_power_of_2(max(each, 1))))


@lru_cache(maxsize=KEPT)
def _space(highest: int, itemsize: int, device: Device) -> Space:
    def wide(config: Config) -> int:
        """The columns of weights of the wider tile: gate and up have BLOCK_N each."""
        return int(max(2 * config["BLOCK_N"], config["DOWN_N"]))

    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_M"] * wide(config), config["num_warps"], device, share=0.6)

    def filled(config: Config) -> bool:
        least = config["BLOCK_M"] * min(2 * config["BLOCK_N"], config["DOWN_N"])
        return bool(config["num_warps"] == 4 or least >= 32 * threads(8, device))

    def shared(config: Config) -> bool:
        each = (config["BLOCK_M"] + wide(config)) * config["BLOCK_K"] * itemsize
        return fits_shared(config["num_stages"] * each, device)

    def alike(config: Config) -> bool:
        return bool(config["BLOCK_N"] <= config["DOWN_N"] <= 4 * config["BLOCK_N"])

    low = highest <= _SWAPPED_ROWS
    blocks = [32, 64] if itemsize == 4 else [32, 64, 128] if low else [64, 128]
    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if highest // 4 <= block <= highest],
            BLOCK_N=blocks,
            DOWN_N=[64, 128, 256],
            BLOCK_K=[64, 128] if itemsize == 2 else [16, 32],
            GROUP_M=[8] if low else [4, 16],
            SWAP=[False, True] if low else [False],
            num_warps=[4, 8],
            num_stages=[3, 4],
        )
        .require("the accumulators fit in registers", registers)
        .require("at least 32 accumulators a thread of 8 warps", filled)
        .require("tiles of both products differ in width by 2 at most", alike)
        .require("the tiles fit in shared memory", shared)
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, high: int, wide: int) -> Config:
    """The configuration nearest to tiles of ``high`` rows by ``wide`` columns of weights, 64 deep."""

    def distance(config: Config) -> tuple[Any, ...]:
        return (
            abs(config["BLOCK_M"] - high), abs(2 * config["BLOCK_N"] - wide), abs(config["DOWN_N"] - wide),
            abs(config["BLOCK_K"] - 64), config["num_warps"] != (8 if config["BLOCK_M"] >= 128 else 4),
            config["SWAP"], config["num_stages"], -config["GROUP_M"],
        )  # fmt: skip

    return min(space.configs, key=distance)

"""FlashAttention 2 in Triton: tiles of queries against tiles of keys, with the softmax online."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import fits_registers, fits_shared, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import KEPT, options
from .kernels import forward as kernels
from .layouts import (
    bytes_held,
    heads_strides,
    mask_bytes,
    mask_strides,
    masked_constants_of,
    reasons,
    scale_of,
    span_of,
)


class TileAttention(TritonImplementation):
    """A program has a tile of queries of a head and passes over the keys that it sees; fp32 sums."""

    op = "attention"
    name = "triton.flash"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device, "q", "k", "v")

    def space(self, problem: Problem, device: Device) -> Space:
        """Queries and keys of a tile, warps, and how many tiles of keys are loaded ahead."""
        rows, keys = (max(16, min(128, next_power_of_2(size))) for size in (problem.q_len, problem.kv_len))
        return _space(rows, keys, span_of(problem), bytes_held(problem, device), mask_bytes(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as large as the GPU's shared memory and registers allow."""
        simple = problem.mask == "none" and not problem.softcap
        return _nearest(self.space(problem, device), span_of(problem), simple, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 it is ahead of torch's FlashAttention, 490 to 317 TFLOP/s, and behind cuDNN."""
        return 0.8

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        strides = mask_strides(problem)
        assert strides is not None
        heads, blocks = problem.batch * problem.heads, -(-problem.q_len // config["BLOCK_M"])
        return Launch(
            kernels.attention,
            grid=(heads * blocks,),
            args=(
                "out", "lse", "q", "k", "v", "mask", scale_of(problem), "softcap", heads, blocks, problem.q_len,
                problem.kv_len, *heads_strides(problem, "q", "k", "v"), *strides,
            ),
            constants={
                **masked_constants_of(problem, device),
                "ROWS": config["BLOCK_M"],
                "KEYS": config["BLOCK_N"],
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )  # fmt: skip


@lru_cache(maxsize=KEPT)
def _space(rows: int, keys: int, span: int, itemsize: int, mask: int, device: Device) -> Space:
    """Tiles of up to ``rows`` queries and ``keys`` keys of ``span`` elements, and ``mask`` bytes for each pair."""

    def registers(config: Config) -> bool:
        live = config["BLOCK_M"] * (span + config["BLOCK_N"])
        return fits_registers(live, config["num_warps"], device, share=0.8)

    def shared(config: Config) -> bool:
        held = (config["BLOCK_M"] + 2 * config["num_stages"] * config["BLOCK_N"]) * span * itemsize
        return fits_shared(held + config["num_stages"] * config["BLOCK_M"] * config["BLOCK_N"] * mask, device)

    return (
        Space(
            BLOCK_M=[block for block in (16, 32, 64, 128) if rows // 4 <= block <= rows],
            BLOCK_N=[block for block in (16, 32, 64, 128) if keys // 4 <= block <= keys],
            num_warps=[4, 8],
            num_stages=[1, 2, 3, 4],
        )
        .require("sums and scores fit in registers", registers)
        .require("the tiles fit in shared memory", shared)
        .require("8 warps have 64 queries", lambda config: config["num_warps"] == 4 or config["BLOCK_M"] >= 64)
    )


def _wanted(span: int, device: Device) -> tuple[int, int, int, int]:
    """Queries, keys, warps and stages for heads of ``span`` elements, of which a space may hold less.

    A tile of 128 keys leaves few registers, also on an H200 (439 TFLOP/s where 64 keys and four stages reach 490).
    AMD's compute units have a third of an A100's shared memory.
    """
    if device.architecture.startswith("gfx"):
        return 128, 64 if span <= 64 else 32, 4, 1
    if device.capability >= (9, 0):
        return 128, 64, 8, 4 if span <= 128 else 2
    return 128, 64, 4 if span <= 64 else 8, 3


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, span: int, simple: bool, device: Device) -> Config:
    """``simple``: a score is a product alone; otherwise half the keys leave registers for what it is made of."""
    rows, keys, warps, stages = _wanted(span, device)
    keys = keys if simple else max(32, keys // 2)

    def distance(config: Config) -> tuple[float, ...]:
        return (
            abs(math.log2(config["BLOCK_M"] / rows)), abs(math.log2(config["BLOCK_N"] / keys)),
            config["num_warps"] != (warps if config["BLOCK_M"] >= 128 else 4), abs(config["num_stages"] - stages),
        )  # fmt: skip

    return min(space.configs, key=distance)

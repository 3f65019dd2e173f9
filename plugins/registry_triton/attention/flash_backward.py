"""The gradients of attention in Triton: deltas of the rows, then keys and values, then queries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import fits_registers, fits_shared, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import KEPT, options
from .kernels import backward as kernels
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

_DELTA_ELEMENTS, _DELTA_WARPS = 8192, 4


class TileAttentionBackward(TritonImplementation):
    """Each program keeps BLOCK keys, or BLOCK queries, and passes over STEP of the others at a time; fp32 sums."""

    op = "attention_backward"
    name = "triton.flash"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device, "q", "k", "v", "grad_out", "out")
        if not problem.traits.contiguous("lse"):
            yield "lse is not contiguous"

    def space(self, problem: Problem, device: Device) -> Space:
        """Sizes of the tile that is kept and of a step, warps, and how many steps are loaded ahead."""
        longest = max(16, min(128, next_power_of_2(max(problem.q_len, problem.kv_len))))
        return space_of(longest, span_of(problem), bytes_held(problem, device), mask_bytes(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as large as the GPU's shared memory and registers allow."""
        return nearest_config(self.space(problem, device), span_of(problem), bytes_held(problem, device), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind torch's kernels until it was measured against them."""
        return 0.8

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        shape = (problem.batch, problem.heads, problem.q_len)
        return {"deltas": TensorSpec.contiguous(shape, torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        needs = needs_of(problem)
        deltas = delta_launch(problem, problem.batch, problem.q_len, heads_strides(problem, "grad_out", "out"))
        return launches_needed(
            needs, deltas, _by_keys(problem, config, needs, device), _by_queries(problem, config, device)
        )


def launches_needed(needs: Mapping[str, bool], deltas: Launch, by_keys: Launch, by_queries: Launch) -> list[Launch]:
    """The launches that make the gradients which are needed; where none is, the deltas, since something must run."""
    launches = [] if needs["NEED_V"] and not (needs["NEED_Q"] or needs["NEED_K"]) else [deltas]
    if needs["NEED_K"] or needs["NEED_V"]:
        launches.append(by_keys)
    if needs["NEED_Q"]:
        launches.append(by_queries)
    return launches


def needs_of(problem: Problem) -> dict[str, bool]:
    """Which gradients are needed; all where only dimensions are known."""
    arguments = problem.traits.arguments
    return {f"NEED_{one.upper()}": arguments is None or arguments.flag(f"need_{one}") for one in "qkv"}


def delta_launch(problem: Problem, sequences: int, length: int, strides: tuple[int, ...]) -> Launch:
    """The launch that makes ``deltas`` of ``grad_out`` and ``out``, sequences of one length with these strides."""
    rows = max(1, _DELTA_ELEMENTS // span_of(problem))
    return Launch(
        kernels.row_deltas,
        grid=(sequences * problem.heads * -(-length // rows),),
        args=("deltas", "grad_out", "out", length, *strides),
        constants={"HEADS": problem.heads, "WIDTH": problem.head_dim, "SPAN": span_of(problem), "ROWS": rows},
        options={"num_warps": _DELTA_WARPS},
    )


def _strides(problem: Problem) -> tuple[int, ...]:
    mask = mask_strides(problem)
    assert mask is not None
    return (*heads_strides(problem, "grad_out", "q", "k", "v"), *mask)


def _by_keys(problem: Problem, config: Config, needs: Mapping[str, bool], device: Device) -> Launch:
    blocks = -(-problem.kv_len // config["BLOCK"])
    return Launch(
        kernels.by_keys,
        grid=(problem.batch * problem.kv_heads * blocks,),
        args=(
            "grad_k", "grad_v", "grad_out", "q", "k", "v", "mask", "lse", "deltas", scale_of(problem), "softcap",
            blocks, problem.q_len, problem.kv_len, *_strides(problem),
        ),
        constants={**masked_constants_of(problem, device), **constants_by_keys(config, needs)},
        options=options(config),
    )  # fmt: skip


def _by_queries(problem: Problem, config: Config, device: Device) -> Launch:
    heads, blocks = problem.batch * problem.heads, -(-problem.q_len // config["BLOCK"])
    return Launch(
        kernels.by_queries,
        grid=(heads * blocks,),
        args=(
            "grad_q", "grad_out", "q", "k", "v", "mask", "lse", "deltas", scale_of(problem), "softcap", heads, blocks,
            problem.q_len, problem.kv_len, *_strides(problem),
        ),
        constants={**masked_constants_of(problem, device), **constants_by_queries(config)},
        options=options(config),
    )  # fmt: skip


def constants_by_keys(config: Config, needs: Mapping[str, bool]) -> dict[str, int | bool]:
    """The constants of a pass that keeps keys and values: its tiles, and which gradients are needed."""
    tiles = {"KEYS": config["BLOCK"], "STEP": config["STEP"], "STAGES": config["num_stages"]}
    return {**tiles, "NEED_K": needs["NEED_K"], "NEED_V": needs["NEED_V"]}


def constants_by_queries(config: Config) -> dict[str, int]:
    """The constants of a pass that keeps queries: its tiles."""
    return {"ROWS": config["BLOCK"], "STEP": config["STEP"], "STAGES": config["num_stages"]}


@lru_cache(maxsize=KEPT)
def space_of(longest: int, span: int, itemsize: int, mask: int, device: Device) -> Space:
    """The space for tiles of up to ``longest`` rows of ``span`` elements; ``mask``: bytes of the mask for a pair.

    Eight warps share a tile as rows of 16. Of float32's parts, which they hold in registers, both halves of the warps
    would have the rows of a tile of 64, and spill so much that ptxas 12.8 takes a wrong address of shared memory.
    """
    least = 128 if splits_floats(itemsize) else 64

    def registers(config: Config) -> bool:
        # two sums of the tile, and two tiles of scores
        live = 2 * config["BLOCK"] * (span + config["STEP"])
        return fits_registers(live, config["num_warps"], device, share=0.8)

    def shared(config: Config) -> bool:
        held = 2 * (config["BLOCK"] + config["num_stages"] * config["STEP"]) * span * itemsize
        scores = config["BLOCK"] * config["STEP"] * (itemsize + config["num_stages"] * mask)
        return fits_shared(held + scores, device)

    return (
        Space(
            BLOCK=[block for block in (16, 32, 64, 128) if longest // 4 <= block <= longest],
            STEP=[step for step in (16, 32, 64, 128) if longest // 8 <= step <= longest],
            num_warps=[4, 8],
            num_stages=[1, 2, 3],
        )
        .require("sums and scores fit in registers", registers)
        .require("the tiles fit in shared memory", shared)
        .require("a step is no longer than the tile", lambda config: config["STEP"] <= config["BLOCK"])
        .require(f"8 warps have {least} rows", lambda config: config["num_warps"] == 4 or config["BLOCK"] >= least)
    )


def splits_floats(itemsize: int) -> bool:
    """Whether elements of so many bytes in shared memory are a float32's two parts for products of tf32."""
    return itemsize > torch.float32.itemsize


def _wanted(span: int, itemsize: int, device: Device) -> tuple[int, int, int, int]:
    """BLOCK, STEP, warps and stages for heads of ``span`` elements: the largest that spill few registers or none."""
    if splits_floats(itemsize):
        return 32, 32, 4, 1
    if device.architecture.startswith("gfx"):
        return 64, 32, 4, 1
    if span > 128:
        return 64, 16, 8, 2
    if device.capability >= (9, 0):
        return 128, 64 if span <= 64 else 32, 8, 2
    return (128, 32, 8, 2) if span <= 64 else (64, 64, 8, 2)


@lru_cache(maxsize=KEPT)
def nearest_config(space: Space, span: int, itemsize: int, device: Device) -> Config:
    """The configuration of ``space`` nearest to what is fast for heads of ``span`` elements."""
    block, step, warps, stages = _wanted(span, itemsize, device)

    def distance(config: Config) -> tuple[float, ...]:
        return (
            abs(math.log2(config["BLOCK"] / block)), abs(math.log2(config["STEP"] / step)),
            config["num_warps"] != (warps if config["BLOCK"] >= 64 else 4), abs(config["num_stages"] - stages),
        )  # fmt: skip

    return min(space.configs, key=distance)

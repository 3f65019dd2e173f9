"""The gradients of attention of packed sequences in Triton: deltas of the rows, then keys and values, then queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import options
from .flash_backward import (
    constants_by_keys,
    constants_by_queries,
    delta_launch,
    launches_needed,
    nearest_config,
    needs_of,
    space_of,
    splits_floats,
)
from .kernels import varlen_backward as kernels
from .layouts import MOST_PROGRAMS, bytes_held, constants_of, scale_of, span_of
from .varlen import most_tiles, packed_reasons, packed_strides


class PackedAttentionBackward(TritonImplementation):
    """A program keeps BLOCK keys, or queries, of one sequence and passes over STEP of the others; fp32 sums.

    It finds its sequence by a search in the offsets, which only the device reads: a call can be captured.
    """

    op = "attention_varlen_backward"
    name = "triton.flash"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from packed_reasons(problem, device, "q", "k", "v", "grad_out", "out")
        if not problem.traits.contiguous("lse"):
            yield "lse is not contiguous"
        programs = problem.heads * most_tiles(max(problem.total_q, problem.total_k), problem.sequences, 16)
        if programs > MOST_PROGRAMS:
            yield f"up to {programs} programs (limit {MOST_PROGRAMS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Sizes of the tile that is kept and of a step, warps, and how many steps are loaded ahead."""
        longest = max(problem.total_q, problem.total_k)
        share = max(16, min(128, next_power_of_2(-(-longest // max(1, problem.sequences)))))
        return space_of(share, span_of(problem), bytes_held(problem, device), 0, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as large as the GPU's shared memory and registers allow, which also hold where sequences begin."""
        space, itemsize = self.space(problem, device), bytes_held(problem, device)
        config = nearest_config(space, span_of(problem), itemsize, device)
        if splits_floats(itemsize):
            return config
        smaller = (
            {**config, "STEP": config["STEP"] // 2},
            {**config, "BLOCK": config["BLOCK"] // 2, "num_warps": 4},
        )
        return next((each for each in smaller if each in space), config)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a call for each sequence, which waits for the offsets and cannot be captured."""
        return 0.8

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"deltas": TensorSpec.contiguous((problem.heads, problem.total_q), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        needs = needs_of(problem)
        # all tokens as those of one sequence
        strides = (0, *packed_strides(problem, "grad_out"), 0, *packed_strides(problem, "out"))
        deltas = delta_launch(problem, 1, problem.total_q, strides)
        return launches_needed(
            needs, deltas, _by_keys(problem, config, needs, device), _by_queries(problem, config, device)
        )


def _common(problem: Problem, tiles: int) -> tuple[Any, ...]:
    """The arguments of both kernels behind their gradients."""
    strides = [stride for name in ("grad_out", "q", "k", "v") for stride in packed_strides(problem, name)]
    return (
        "grad_out", "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "lse", "deltas", scale_of(problem), "softcap", tiles,
        problem.sequences, problem.total_q, problem.total_k, *strides,
    )  # fmt: skip


def _by_keys(problem: Problem, config: Config, needs: Mapping[str, bool], device: Device) -> Launch:
    tiles = most_tiles(problem.total_k, problem.sequences, config["BLOCK"])
    return Launch(
        kernels.packed_by_keys,
        grid=(problem.kv_heads * tiles,),
        args=("grad_k", "grad_v", *_common(problem, tiles)),
        constants={**constants_of(problem, device), **constants_by_keys(config, needs)},
        options=options(config),
    )


def _by_queries(problem: Problem, config: Config, device: Device) -> Launch:
    tiles = most_tiles(problem.total_q, problem.sequences, config["BLOCK"])
    return Launch(
        kernels.packed_by_queries,
        grid=(problem.heads * tiles,),
        args=("grad_q", *_common(problem, tiles)),
        constants={**constants_of(problem, device), **constants_by_queries(config)},
        options=options(config),
    )

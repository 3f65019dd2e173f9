"""fused_moe for a few tokens: every row of weights is read once for each pair, and multiplied without tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, fits_shared
from registry.backends.triton import TritonImplementation
from registry.problem import TensorSpec

from ..support import KEPT, options
from .kernels import moe_gemv as kernels
from .moe import FUNCTIONS
from .tiles import reasons

_MOST_PAIRS = 64
"""Pairs beyond which weights are read too often: each pair reads its expert's."""


class GemvMoe(TritonImplementation):
    """Two launches, no sorting: gate and up with the activation, then all experts of a token into its result.

    One token of Mixtral-8x7B on one of two devices reads 2 experts of 3 x 7168 x 4096 weights, 352 MB in bfloat16. An
    H200 needs 83 µs for that at 4.27 TB/s; with the ends of two launches about 93 can be hoped for.
    """

    op = "fused_moe"
    name = "triton.gemv"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from reasons(problem, device)
        pairs = problem.tokens * problem.top_k
        if pairs > _MOST_PAIRS:
            counted = f"{problem.tokens} tokens x {problem.top_k} experts"
            yield f"{counted}, {pairs} pairs, are too many without tensor cores (limit {_MOST_PAIRS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows of weights of a program in both products, their depth, warps, and steps loaded ahead."""
        return _space(problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """4 warps on 4 rows of gate and up, and on 8 of the result."""
        return _nearest(self.space(problem, device))

    def preference(self, problem: Problem, device: Device) -> float:
        """First for one token, whose experts are distinct; else behind the tiles, which read an expert once."""
        return 1.0 if problem.tokens == 1 else 0.1

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {
            "inner": TensorSpec.contiguous((problem.tokens * problem.top_k, problem.intermediate), problem.torch_dtype)
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        hidden, width, into, back = problem.hidden, problem.intermediate, config["BLOCK_N"], config["DOWN_N"]
        constants = {
            "TOP_K": problem.top_k,
            "EXPERTS": problem.experts,
            "BLOCK_K": config["BLOCK_K"],
            "STAGES": config["num_stages"],
        }
        return [
            Launch(
                kernels.gate_up,
                grid=(problem.tokens * problem.top_k, -(-width // into)),
                args=("inner", "x", "w13", "topk_ids", hidden, width),
                constants={
                    **constants,
                    "FUNCTION": FUNCTIONS[problem.activation],
                    "EVEN_K": hidden % config["BLOCK_K"] == 0,
                    "BLOCK_N": into,
                },
                options=options(config),
            ),
            Launch(
                kernels.down,
                grid=(problem.tokens, -(-hidden // back)),
                args=("y", "inner", "w2", "topk_weights", "topk_ids", hidden, width),
                constants={**constants, "EVEN_K": width % config["BLOCK_K"] == 0, "BLOCK_N": back},
                options=options(config),
            ),
        ]


@lru_cache(maxsize=KEPT)
def _space(itemsize: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        each = [
            elements_per_thread(rows * config["BLOCK_K"], config["num_warps"], device)
            for rows in (2 * config["BLOCK_N"], config["DOWN_N"])
        ]
        return min(each) >= 8 and max(each) <= 64

    def held(config: Config) -> bool:
        rows = max(2 * config["BLOCK_N"], config["DOWN_N"]) + 1
        return fits_shared(config["num_stages"] * rows * config["BLOCK_K"] * itemsize, device)

    return (
        Space(
            BLOCK_N=[2, 4, 8],
            DOWN_N=[2, 4, 8, 16],
            BLOCK_K=[256, 512, 1024],
            num_warps=[2, 4, 8],
            num_stages=[1, 3],
        )
        .require("8 to 64 weights a thread", share)
        .require("the weights loaded ahead fit in shared memory", held)
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space) -> Config:
    """The configuration nearest to 4 warps on 8 rows of weights, 512 deep."""

    def distance(config: Config) -> tuple[float, ...]:
        return (
            abs(config["BLOCK_N"] - 4), abs(config["DOWN_N"] - 8), abs(config["BLOCK_K"] - 512),
            abs(config["num_warps"] - 4), -config["num_stages"],
        )  # fmt: skip

    return min(space.configs, key=distance)

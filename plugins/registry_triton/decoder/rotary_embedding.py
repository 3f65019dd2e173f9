"""rotary_embedding by blocks of tokens and heads."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import next_power_of_2
from registry.backends.head_strides import head_reasons, head_strides, row_stride
from registry.backends.triton import TritonImplementation

from ..support import options
from .heads import block_space, one_token, type_reasons
from .kernels import rotary_embedding as kernels

MOST_ROTATED = 1024
"""The most elements of a head that are rotated: the heads of models have 64 to 256."""


class BlockRotaryEmbedding(TritonImplementation):
    """One program a block of tokens and heads, which reads its cosines and sines once; fp32 arithmetic."""

    op = "rotary_embedding"
    name = "triton.block"
    mixed = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        yield from head_reasons(problem, "positions", {"query": problem.heads, "key": problem.kv_heads})
        if row_stride(problem, "cos_sin_cache", problem.rotary_dim) is None:
            yield "the elements of a row of cos_sin_cache are not neighbours"
        if problem.rotary_dim > MOST_ROTATED:
            yield f"{problem.rotary_dim} elements of a head (limit {MOST_ROTATED})"
        if not problem.kv_heads:
            yield "key has no heads"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tokens and heads a program, and warps: between 4 and 32 elements a thread, where one warp has as many."""
        return block_space(_span(problem), next_power_of_2(max(problem.heads, problem.kv_heads)), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One token a program and 16 elements a thread, by 4 warps, or one warp where there are few tokens."""
        warps = 4 if problem.tokens * _heads(problem) * problem.rotary_dim >= 2048 * device.multiprocessors else 1
        return one_token(self.space(problem, device), _span(problem), 16, warps, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """torch's operators move eight tensors where two are needed."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tokens, heads = config["tokens_per_program"], config["heads_per_program"]
        blocks = -(-problem.heads // heads) + -(-problem.kv_heads // heads)
        query, key = _strides(problem, "query"), _strides(problem, "key")
        assert query is not None
        assert key is not None
        row = row_stride(problem, "cos_sin_cache", problem.rotary_dim)
        assert row is not None
        return Launch(
            kernels.rotary_embedding,
            grid=(-(-problem.tokens // tokens) * blocks,),
            args=("positions", "query", "key", "cos_sin_cache", problem.tokens, *query, *key, row),
            constants={
                "QUERIES": problem.heads,
                "KEYS": problem.kv_heads,
                "NEOX": problem.style == "neox",
                "HALF": problem.rotary_dim // 2,
                "PAIRS": _span(problem) // 2,
                "TOKENS": tokens,
                "HEADS": heads,
            },
            options=options(config),
        )


def _heads(problem: Problem) -> int:
    return int(problem.heads + problem.kv_heads)


def _span(problem: Problem) -> int:
    """Elements of a head that a program reads, rotated ones and those up to a power of two."""
    return next_power_of_2(problem.rotary_dim)


def _strides(problem: Problem, name: str) -> tuple[int, int] | None:
    return head_strides(problem, name, problem.heads if name == "query" else problem.kv_heads, "positions")

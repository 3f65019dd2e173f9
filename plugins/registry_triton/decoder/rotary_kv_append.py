"""rotary_kv_append by blocks of tokens and heads."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import next_power_of_2
from registry.backends.programmatic_launch import pdl_options
from registry.backends.sequence_strides import index_strides, sequence_reasons, sequence_strides, table_strides
from registry.backends.triton import TritonImplementation

from ..support import options
from .dependents import is_dependent
from .heads import block_space, one_token, type_reasons
from .kernels import rotary_kv_append as kernels

MOST_DIM = 1024
"""The longest head: those of models have 64 to 256 elements."""

_OF_HEADS = ("query", "key", "value", "k_cache", "v_cache")


class BlockRotaryKvAppend(TritonImplementation):
    """One program a block of tokens and heads, of queries, or of keys and their values; fp32 arithmetic."""

    op = "rotary_kv_append"
    name = "triton.block"
    mixed = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        yield from sequence_reasons(problem, _OF_HEADS)
        if table_strides(problem) is None:
            yield "the elements of a row of cos_sin_cache are not neighbours"
        if problem.head_dim > MOST_DIM:
            yield f"heads of {problem.head_dim} elements (limit {MOST_DIM})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tokens and heads a program, and warps: between 4 and 32 elements a thread, where one warp has as many."""
        return block_space(_span(problem), next_power_of_2(max(problem.heads, problem.kv_heads)), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One token a program and about 8 elements a thread, by 4 warps, or one warp where there are few tokens."""
        elements = problem.batch * problem.q_len * (problem.heads + problem.kv_heads) * problem.head_dim
        warps = 4 if elements >= 2048 * device.multiprocessors else 1
        return one_token(self.space(problem, device), _span(problem), 8, warps, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """torch's operators move many tensors where five are needed."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tokens, heads = config["tokens_per_program"], config["heads_per_program"]
        count, dependent = problem.batch * problem.q_len, is_dependent(device)
        blocks = -(-problem.heads // heads) + -(-problem.kv_heads // heads)
        query, key, value, k_cache, v_cache = (sequence_strides(problem, name) or () for name in _OF_HEADS)
        positions = index_strides(problem, "positions", (problem.q_len, 1)) if problem.positions else (0, 0)
        (length,) = index_strides(problem, "cache_seqlens", (1,))
        tensors = ("rotated", "kv_lens", "query", "key", "value", "cos_sin_cache", "k_cache", "v_cache")
        strides = (*positions, *query, *key, *value, *(table_strides(problem) or ()), *k_cache, *v_cache, length)
        return Launch(
            kernels.rotary_kv_append,
            grid=(-(-count // tokens) * blocks,),
            args=(*tensors, "cache_seqlens", "positions", count, problem.q_len, problem.kv_len, *strides),
            constants={
                "QUERIES": problem.heads,
                "KEYS": problem.kv_heads,
                "DIM": problem.head_dim,
                "SPAN": _span(problem),
                "NEOX": problem.style == "neox",
                "HALF": problem.rotary_dim // 2,
                "PAIRS": next_power_of_2(problem.rotary_dim) // 2,
                "REST_SPAN": next_power_of_2(max(1, problem.head_dim - problem.rotary_dim)),
                "TOKENS": tokens,
                "HEADS": heads,
                "DEPENDENT": dependent,
            },
            options={**options(config), **pdl_options(dependent)},
        )


def _span(problem: Problem) -> int:
    """Elements of a head up to a power of two."""
    return next_power_of_2(problem.head_dim)

"""kv_cache_append by blocks of tokens and heads."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import next_power_of_2
from registry.backends.head_strides import outer_strides
from registry.backends.triton import INTERPRETED, TritonImplementation

from ..quantize import float8_reasons
from ..support import options
from .heads import block_space, one_token, type_reasons
from .kernels import kv_cache_append as kernels

MOST_DIM = 1024
"""The longest head: those of models have 64 to 576 elements."""


class BlockKvCacheAppend(TritonImplementation):
    """One program a block of tokens and heads, which writes their keys and their values."""

    op = "kv_cache_append"
    name = "triton.block"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        yield from float8_reasons(problem.kv_dtype, device)
        if not problem.traits.contiguous("slot_mapping"):
            yield "slot_mapping is not contiguous"
        for name in ("key", "value", "key_cache", "value_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a head of {name} are not neighbours"
        if problem.head_dim > MOST_DIM:
            yield f"heads of {problem.head_dim} elements (limit {MOST_DIM})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tokens and heads a program, and warps: between 4 and 32 elements a thread of keys, and of values."""
        return block_space(next_power_of_2(problem.head_dim), next_power_of_2(problem.kv_heads), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One token a program and about 8 elements a thread."""
        return one_token(self.space(problem, device), next_power_of_2(problem.head_dim), 8, 4, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """torch's operators gather all tokens, and read what they write."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tokens, heads = config["tokens_per_program"], config["heads_per_program"]
        strides = [_strides(problem, name) or () for name in ("key", "value", "key_cache", "value_cache")]
        tensors = ("key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale")
        return Launch(
            kernels.kv_cache_append,
            grid=(-(-problem.tokens // tokens) * -(-problem.kv_heads // heads),),
            args=(*tensors, problem.tokens, *(stride for each in strides for stride in each)),
            constants={
                "SIZE": problem.block_size,
                "KV_HEADS": problem.kv_heads,
                "DIM": problem.head_dim,
                "SPAN": next_power_of_2(problem.head_dim),
                "ROUND": INTERPRETED,
                "TOKENS": tokens,
                "HEADS": heads,
            },
            options=options(config),
        )


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    row = (problem.kv_heads, problem.head_dim)
    return outer_strides(problem, name, (problem.block_size, *row) if name.endswith("cache") else row)

"""kv_cache_append by blocks of tokens and heads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.head_strides import outer_strides
from registry.backends.triton import INTERPRETED, TritonImplementation

from ..quantize import float8_reasons
from ..support import DTYPES, KEPT, options
from .kernels import kv_cache_append as kernels

MOST_DIM = 1024
"""The longest head: those of models have 64 to 576 elements."""


class BlockKvCacheAppend(TritonImplementation):
    """One program a block of tokens and heads, which writes their keys and their values."""

    op = "kv_cache_append"
    name = "triton.block"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.dtype not in DTYPES:
            yield f"dtype {problem.dtype} (supported: {', '.join(DTYPES)})"
        yield from float8_reasons(problem.kv_dtype, device)
        if not problem.traits.contiguous("slot_mapping"):
            yield "slot_mapping is not contiguous"
        for name in ("key", "value", "key_cache", "value_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a head of {name} are not neighbours"
        if problem.head_dim > MOST_DIM:
            yield f"heads of {problem.head_dim} elements (limit {MOST_DIM})"
        major, minor = device.capability
        if device.type == "cuda" and (0, 0) < (major, minor) < ((8, 0) if problem.dtype == "bfloat16" else (7, 5)):
            yield f"{problem.dtype} on compute capability {major}.{minor}"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tokens and heads a program, and warps: between 2 and 32 elements a thread of keys, and of values."""
        return _space(next_power_of_2(problem.head_dim), next_power_of_2(problem.kv_heads), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One token a program and about 8 elements a thread."""
        return _nearest(self.space(problem, device), next_power_of_2(problem.head_dim), device)

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


@lru_cache(maxsize=KEPT)
def _space(span: int, most_heads: int, device: Device) -> Space:
    def elements(config: Config) -> float:
        block = config["tokens_per_program"] * config["heads_per_program"] * span
        return elements_per_thread(block, config["num_warps"], device)

    return Space(
        tokens_per_program=[1, 2, 4, 8],
        heads_per_program=[count for count in (1, 2, 4, 8, 16, 32) if count <= most_heads],
        num_warps=[1, 2, 4, 8],
    ).require(
        "2 to 32 elements a thread",
        lambda config: elements(config) <= 32 and (elements(config) >= 2 or config["num_warps"] == 1),
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, span: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        share = elements_per_thread(config["heads_per_program"] * span, config["num_warps"], device)
        return config["tokens_per_program"], abs(share - 8), abs(config["num_warps"] - 4)

    return min(space.configs, key=distance)

"""rotary_kv_append over the heads of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from registry.backends.cpp import CppImplementation
from registry.backends.sequence_strides import index_strides, sequence_reasons, sequence_strides, table_strides
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from .base import ELEMENT_TYPES, kernel, thread_counts
from .rotary_embedding import MOST_ROTATED

ROTARY_KV_APPEND = kernel("rotary_kv_append", "decoder/rotary_embedding.cpp", "decoder/rotary_kv_append.cpp")

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 16_384

_OF_HEADS = ("query", "key", "value", "k_cache", "v_cache")


class CppRotaryKvAppend(CppImplementation):
    """Heads of all tokens are dealt to the threads, copied to their places and rotated there."""

    op = "rotary_kv_append"
    name = "cpp.heads"
    mixed = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        yield from sequence_reasons(problem, _OF_HEADS)
        if table_strides(problem) is None:
            yield "the elements of a row of cos_sin_cache are not neighbours"
        if problem.rotary_dim > MOST_ROTATED:
            yield f"{problem.rotary_dim} elements of a head (limit {MOST_ROTATED})"

    def preference(self, problem: Problem, device: Device) -> float:
        # torch makes a tensor for each part of the rotation: 6 times as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Heads that are rotated together, which share the loads of cosines and sines, and threads."""
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Two heads together, and a thread for each 16384 elements."""
        heads = problem.batch * problem.q_len * (problem.heads + problem.kv_heads)
        wanted = max(1, min(heads, heads * problem.head_dim // _ELEMENTS_PER_THREAD))
        return {"heads": 2, "threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel."""
        query, key, value, k_cache, v_cache = (sequence_strides(problem, name) or () for name in _OF_HEADS)
        positions = index_strides(problem, "positions", (problem.q_len, 1)) if problem.positions else (0, 0)
        (length,) = index_strides(problem, "cache_seqlens", (1,))
        tensors = ("rotated", "kv_lens", "query", "key", "value", "cos_sin_cache", "k_cache", "v_cache")
        sizes = (problem.batch * problem.q_len, problem.q_len, problem.kv_len, problem.heads, problem.kv_heads)
        strides = (*positions, *query, *key, *value, *(table_strides(problem) or ()), *k_cache, *v_cache, length)
        element, traits = ELEMENT_TYPES[problem.dtype], problem.traits
        return Launch(
            ROTARY_KV_APPEND,
            grid=(1,),
            args=(*tensors, "cache_seqlens", "positions", *sizes, *strides, config["threads"]),
            constants={
                "ELEMENT": element,
                "TABLE": "float" if traits["mixed"] else element,
                "POSITION": "int32_t" if problem.positions and traits.dtype("positions") == "int32" else "int64_t",
                "LENGTH": "int64_t" if traits.dtype("cache_seqlens") == "int64" else "int32_t",
                "DIM": problem.head_dim,
                "HALF": problem.rotary_dim // 2,
                "NEOX": problem.style == "neox",
                "HEADS": config["heads"],
            },
        )


@lru_cache(maxsize=64)
def _space(device: Device) -> Space:
    return Space(heads=[1, 2, 4], threads=thread_counts(device))

"""rotary_embedding over the heads of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from registry.backends.cpp import CppImplementation
from registry.backends.head_strides import head_reasons, head_strides, row_stride
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from .base import ELEMENT_TYPES, kernel, thread_counts

ROTARY_EMBEDDING = kernel("rotary_embedding", "decoder/rotary_embedding.cpp")

MOST_ROTATED = 4096
"""The most elements of a head that are rotated: a thread keeps twice as many numbers on its stack."""

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 16_384


class CppRotaryEmbedding(CppImplementation):
    """Heads of all tokens are dealt to the threads; a token's cosines and sines are converted once for its heads."""

    op = "rotary_embedding"
    name = "cpp.heads"
    mixed = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        yield from self.stride_reasons(problem)
        if row_stride(problem, "cos_sin_cache", problem.rotary_dim) is None:
            yield "the elements of a row of cos_sin_cache are not neighbours"
        if problem.rotary_dim > MOST_ROTATED:
            yield f"{problem.rotary_dim} elements of a head (limit {MOST_ROTATED})"

    def stride_reasons(self, problem: Problem) -> Iterator[str]:
        """Why the heads of the tensors, or their positions, lie so that the kernel cannot read them."""
        yield from head_reasons(problem, "positions", {"query": problem.heads, "key": problem.kv_heads})

    def preference(self, problem: Problem, device: Device) -> float:
        # torch makes a tensor for each part of the rotation: 4 times as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Heads that are rotated together, which share the loads of cosines and sines, and threads."""
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Two heads together, and a thread for each 16384 elements."""
        heads = problem.tokens * (problem.heads + problem.kv_heads)
        wanted = max(1, min(heads, heads * problem.rotary_dim // _ELEMENTS_PER_THREAD))
        return {"heads": 2, "threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel."""
        query, key = _strides(problem, "query"), _strides(problem, "key")
        assert query is not None
        assert key is not None
        row = row_stride(problem, "cos_sin_cache", problem.rotary_dim)
        assert row is not None
        element = ELEMENT_TYPES[problem.dtype]
        sizes = (problem.tokens, problem.heads, problem.kv_heads)
        return Launch(
            ROTARY_EMBEDDING,
            grid=(1,),
            args=("positions", "query", "key", "cos_sin_cache", *sizes, *query, *key, row, config["threads"]),
            constants={
                "ELEMENT": element,
                "TABLE": "float" if problem.traits["mixed"] else element,
                "POSITION": "int32_t" if problem.traits.dtype("positions") == "int32" else "int64_t",
                "HALF": problem.rotary_dim // 2,
                "NEOX": problem.style == "neox",
                "HEADS": config["heads"],
            },
        )


def _strides(problem: Problem, name: str) -> tuple[int, int] | None:
    return head_strides(problem, name, problem.heads if name == "query" else problem.kv_heads, "positions")


@lru_cache(maxsize=64)
def _space(device: Device) -> Space:
    return Space(heads=[1, 2, 4], threads=thread_counts(device))

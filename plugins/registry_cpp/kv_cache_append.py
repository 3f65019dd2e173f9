"""kv_cache_append over tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from registry.backends.cpp import CppImplementation
from registry.backends.head_strides import outer_strides
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from .base import ELEMENT_TYPES, kernel, thread_counts

KV_CACHE_APPEND = kernel("kv_cache_append", "decoder/kv_cache_append.cpp")

_ADDED = {"kv_dtype": ("int8",)}

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 32_768


class CppKvCacheAppend(CppImplementation):
    """Tokens are dealt to the threads; ``apart`` writes the values of a thread's tokens after all their keys."""

    op = "kv_cache_append"
    name = "cpp.tokens"
    added = _ADDED

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        if not problem.traits.contiguous("slot_mapping"):
            yield "slot_mapping is not contiguous"
        for name in ("key", "value", "key_cache", "value_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a head of {name} are not neighbours"

    def preference(self, problem: Problem, device: Device) -> float:
        # torch's indexed writes go element by element: 16 times as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """The order of keys and values, and threads."""
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Keys and values of a token together, and a thread for each 32768 elements."""
        elements = 2 * problem.tokens * problem.kv_heads * problem.head_dim
        wanted = max(1, min(problem.tokens, elements // _ELEMENTS_PER_THREAD))
        return {"apart": False, "threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel; a scale that is not given is a null pointer."""
        strides = [_strides(problem, name) or () for name in ("key", "value", "key_cache", "value_cache")]
        tensors = ("key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale")
        numbers = (problem.tokens, *(stride for each in strides for stride in each), config["threads"])
        return Launch(
            KV_CACHE_APPEND,
            grid=(1,),
            args=(*tensors, *numbers),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "SLOT": "int32_t" if problem.traits.dtype("slot_mapping") == "int32" else "int64_t",
                "FLOAT8": problem.kv_dtype == "float8_e4m3fn",
                "INT8": problem.kv_dtype == "int8",
                "HEADS": problem.kv_heads,
                "DIM": problem.head_dim,
                "SIZE": problem.block_size,
                "APART": config["apart"],
            },
        )


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    row = (problem.kv_heads, problem.head_dim)
    return outer_strides(problem, name, (problem.block_size, *row) if name.endswith("cache") else row)


@lru_cache(maxsize=64)
def _space(device: Device) -> Space:
    return Space(apart=[False, True], threads=thread_counts(device))

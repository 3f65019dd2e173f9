"""apply_rotary and its gradient over the heads of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import ClassVar

from registry.backends.cpp import CppImplementation
from registry.backends.head_strides import row_stride, token_strides
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from .base import ELEMENT_TYPES, kernel, thread_counts
from .rotary_embedding import MOST_ROTATED

APPLY_ROTARY = kernel("apply_rotary", "decoder/rotary_embedding.cpp", "decoder/apply_rotary.cpp")

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 16_384


class CppApplyRotary(CppImplementation):
    """Heads of all tokens are dealt to the threads, copied to their places and rotated there."""

    op = "apply_rotary"
    name = "cpp.heads"
    mixed = True
    tensors: ClassVar[tuple[str, str, str, str]] = ("rotated_query", "rotated_key", "query", "key")
    """Both results, and what they are made from."""
    back: ClassVar[bool] = False

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        if isinstance(strides := token_strides(problem, "positions", self._counts(problem)), str):
            yield strides
        if row_stride(problem, "cos_sin_cache", problem.rotary_dim) is None:
            yield "the elements of a row of cos_sin_cache are not neighbours"
        if problem.rotary_dim > MOST_ROTATED:
            yield f"{problem.rotary_dim} elements of a head (limit {MOST_ROTATED})"

    def preference(self, problem: Problem, device: Device) -> float:
        # torch makes a tensor for each part of the rotation: 4 times as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Heads that are rotated together, which share the loads of cosines and sines, and threads."""
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Two heads together, and a thread for each 16384 elements."""
        heads = problem.tokens * (problem.heads + problem.kv_heads)
        wanted = max(1, min(heads, heads * problem.head_dim // _ELEMENTS_PER_THREAD))
        return {"heads": 2, "threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel."""
        strides = token_strides(problem, "positions", self._counts(problem))
        row = row_stride(problem, "cos_sin_cache", problem.rotary_dim)
        assert not isinstance(strides, str)
        assert row is not None
        *_, query, key = self.tensors
        element, sizes = ELEMENT_TYPES[problem.dtype], (problem.tokens, strides.length, *self._needed(problem))
        return Launch(
            APPLY_ROTARY,
            grid=(1,),
            args=(
                *(*self.tensors, "positions", "cos_sin_cache", *sizes, *strides.places),
                *(*strides.heads[query], *strides.heads[key], row, config["threads"]),
            ),
            constants={
                "ELEMENT": element,
                "TABLE": "float" if problem.traits["mixed"] else element,
                "POSITION": "int32_t" if problem.traits.dtype("positions") == "int32" else "int64_t",
                "DIM": problem.head_dim,
                "HALF": problem.rotary_dim // 2,
                "NEOX": problem.style == "neox",
                "BACK": self.back,
                "HEADS": config["heads"],
            },
        )

    def _counts(self, problem: Problem) -> Mapping[str, int]:
        return dict(zip(self.tensors[2:], (problem.heads, problem.kv_heads), strict=True))

    def _needed(self, problem: Problem) -> tuple[int, int]:
        """How many heads of query and of key are rotated."""
        return problem.heads, problem.kv_heads


class CppApplyRotaryBackward(CppApplyRotary):
    """The rotation by the opposite angles, of the gradients that are needed."""

    op = "apply_rotary_backward"
    tensors = ("grad_query", "grad_key", "grad_rotated_query", "grad_rotated_key")
    back = True

    def _needed(self, problem: Problem) -> tuple[int, int]:
        arguments = problem.traits.arguments
        query, key = (arguments is None or arguments.flag(name) for name in ("need_query", "need_key"))
        return query * problem.heads, key * problem.kv_heads


@lru_cache(maxsize=64)
def _space(device: Device) -> Space:
    return Space(heads=[1, 2, 4], threads=thread_counts(device))

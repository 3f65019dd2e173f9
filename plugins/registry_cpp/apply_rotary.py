"""apply_rotary and its gradient over the heads of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from registry.backends.head_strides import row_stride, token_strides
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config

from .base import ELEMENT_TYPES, kernel, thread_counts
from .rotary_embedding import CppRotaryEmbedding

APPLY_ROTARY = kernel("apply_rotary", "decoder/rotary_embedding.cpp", "decoder/apply_rotary.cpp")

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 16_384


class CppApplyRotary(CppRotaryEmbedding):
    """Heads of all tokens are dealt to the threads, copied to their places and rotated there."""

    op = "apply_rotary"
    tensors: ClassVar[tuple[str, str, str, str]] = ("rotated_query", "rotated_key", "query", "key")
    """Both results, and what they are made from."""
    back: ClassVar[bool] = False

    def stride_reasons(self, problem: Problem) -> Iterator[str]:
        if isinstance(strides := token_strides(problem, "positions", self._counts(problem)), str):
            yield strides

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

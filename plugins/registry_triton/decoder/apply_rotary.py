"""apply_rotary and its gradient by blocks of tokens and heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import next_power_of_2
from registry.backends.head_strides import row_stride, token_strides
from registry.backends.triton import TritonImplementation

from ..support import options
from .heads import block_space, one_token, type_reasons
from .kernels import apply_rotary as kernels

MOST_DIM = 1024
"""The longest head: those of models have 64 to 256 elements."""


class BlockApplyRotary(TritonImplementation):
    """One program a block of tokens and heads, which reads its cosines and sines once; fp32 arithmetic."""

    op = "apply_rotary"
    name = "triton.block"
    mixed = True
    tensors: ClassVar[tuple[str, str, str, str]] = ("rotated_query", "rotated_key", "query", "key")
    """Both results, and what they are made from."""
    back: ClassVar[bool] = False

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        if isinstance(strides := token_strides(problem, "positions", self._counts(problem)), str):
            yield strides
        if row_stride(problem, "cos_sin_cache", problem.rotary_dim) is None:
            yield "the elements of a row of cos_sin_cache are not neighbours"
        if problem.head_dim > MOST_DIM:
            yield f"heads of {problem.head_dim} elements (limit {MOST_DIM})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tokens and heads a program, and warps: between 4 and 32 elements a thread, where one warp has as many."""
        return block_space(_span(problem), next_power_of_2(max(problem.heads, problem.kv_heads)), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One token a program and 16 elements a thread, by 4 warps, or one warp where there are few tokens."""
        elements = problem.tokens * (problem.heads + problem.kv_heads) * problem.head_dim
        warps = 4 if elements >= 2048 * device.multiprocessors else 1
        return one_token(self.space(problem, device), _span(problem), 16, warps, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """torch's operators move eight tensors where two are needed."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tokens, heads = config["tokens_per_program"], config["heads_per_program"]
        strides = token_strides(problem, "positions", self._counts(problem))
        row = row_stride(problem, "cos_sin_cache", problem.rotary_dim)
        assert not isinstance(strides, str)
        assert row is not None
        *_, query, key = self.tensors
        queries, keys = self._needed(problem)
        sizes = (problem.tokens, strides.length)
        return Launch(
            kernels.apply_rotary,
            grid=(-(-problem.tokens // tokens) * (-(-queries // heads) + -(-keys // heads)),),
            args=(
                *(*self.tensors, "positions", "cos_sin_cache", *sizes),
                *(*strides.places, *strides.heads[query], *strides.heads[key], row),
            ),
            constants={
                "QUERIES": queries,
                "KEYS": keys,
                "DIM": problem.head_dim,
                "NEOX": problem.style == "neox",
                "BACK": self.back,
                "HALF": problem.rotary_dim // 2,
                "PAIRS": next_power_of_2(problem.rotary_dim) // 2,
                "REST_SPAN": next_power_of_2(max(1, problem.head_dim - problem.rotary_dim)),
                "TOKENS": tokens,
                "HEADS": heads,
            },
            options=options(config),
        )

    def _counts(self, problem: Problem) -> Mapping[str, int]:
        return dict(zip(self.tensors[2:], (problem.heads, problem.kv_heads), strict=True))

    def _needed(self, problem: Problem) -> tuple[int, int]:
        """How many heads of query and of key are rotated."""
        return problem.heads, problem.kv_heads


class BlockApplyRotaryBackward(BlockApplyRotary):
    """The rotation by the opposite angles, of the gradients that are needed."""

    op = "apply_rotary_backward"
    tensors = ("grad_query", "grad_key", "grad_rotated_query", "grad_rotated_key")
    back = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if not any(self._needed(problem)):
            yield "neither gradient is needed"

    def _needed(self, problem: Problem) -> tuple[int, int]:
        arguments = problem.traits.arguments
        query, key = (arguments is None or arguments.flag(name) for name in ("need_query", "need_key"))
        return query * problem.heads, key * problem.kv_heads


def _span(problem: Problem) -> int:
    """Elements of a head up to a power of two."""
    return next_power_of_2(problem.head_dim)

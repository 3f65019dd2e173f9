"""Strides of tensors [batch, tokens, heads, head_dim], such as caches in rows, and of integers of each sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..problem import Problem
from .head_strides import outer_strides, row_stride


def sequence_strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    """Elements of tensor ``name`` from a sequence, a token and a head to the next; None unless heads are neighbours.

    ``query`` has heads and q_len tokens, others kv_heads, and caches kv_len tokens.
    """
    heads = problem.heads if name == "query" else problem.kv_heads
    tokens = problem.kv_len if name.endswith("cache") else problem.q_len
    return outer_strides(problem, name, (tokens, heads, problem.head_dim))


def sequence_reasons(problem: Problem, names: Iterable[str]) -> Iterator[str]:
    """Why a kernel cannot read tensors of heads."""
    for name in names:
        if sequence_strides(problem, name) is None:
            yield f"the elements of a head of {name} are not neighbours"


def table_strides(problem: Problem) -> tuple[int, int] | None:
    """Elements of cos_sin_cache from a sequence and a row to the next; None unless those of a row are neighbours.

    With positions it is one table of all sequences.
    """
    if problem.positions:
        row = row_stride(problem, "cos_sin_cache", problem.rotary_dim)
        return None if row is None else (0, row)
    strides = outer_strides(problem, "cos_sin_cache", (problem.q_len, problem.rotary_dim))
    return None if strides is None else (strides[0], strides[1])


def index_strides(problem: Problem, name: str, contiguous: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of positions or lengths, 0 where all sequences share them; ``contiguous`` for the usual layout."""
    traits = problem.traits
    if traits.contiguous(name) or (arguments := traits.arguments) is None:
        return contiguous
    return tuple(arguments.tensor(name).strides)

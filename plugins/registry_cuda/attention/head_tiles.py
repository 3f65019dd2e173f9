"""Tensors of heads as the copy engine sees them: tiles of the rows of one head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from registry import Problem
from registry.backends.head_strides import outer_strides

from ..tensor_map import WIDTH, itemsize

VECTOR = 16
"""Bytes of which addresses and strides of a tensor map are multiples."""
_MOST_STRIDE = 2**40
_OF_KEYS = ("k", "v")


class HeadTiles(NamedTuple):
    """Tensor ``[batch, length, heads, head_dim]`` of halves in tiles of ``height`` rows of one head, 64 elements wide.

    ``batch_stride``, ``token_stride`` and ``head_stride`` count elements; the elements of a head are neighbours.
    """

    dtype: str
    batch: int
    length: int
    heads: int
    head_dim: int
    batch_stride: int
    token_stride: int
    head_stride: int
    height: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of a head, tokens, heads, and batches."""
        return self.head_dim, self.length, self.heads, self.batch

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from a token, from a head and from a batch to the next; of one alone, those of a vector."""
        each = ((self.length, self.token_stride), (self.heads, self.head_stride), (self.batch, self.batch_stride))
        size = itemsize(self.dtype)
        return tuple([VECTOR if count == 1 else stride * size for count, stride in each])

    @property
    def tile(self) -> tuple[int, ...]:
        """The extents of a tile."""
        return WIDTH // itemsize(self.dtype), self.height, 1, 1


def head_tiles(problem: Problem, name: str, height: int) -> HeadTiles | None:
    """A tensor of an attention or its gradient in tiles of so many rows; None if a head's elements are apart.

    ``name`` is ``k`` or ``v``, or that of a tensor of queries' rows: ``q``, ``grad_out`` or ``out``.
    """
    length, heads = (problem.kv_len, problem.kv_heads) if name in _OF_KEYS else (problem.q_len, problem.heads)
    strides = outer_strides(problem, name, (length, heads, problem.head_dim))
    if strides is None:
        return None
    of_batch, of_token, of_head = strides
    return HeadTiles(problem.dtype, problem.batch, length, heads, problem.head_dim, of_batch, of_token, of_head, height)


def packed_head_tiles(problem: Problem, name: str, height: int) -> HeadTiles | None:
    """The tiles of ``head_tiles`` of packed sequences, as of one batch."""
    length, heads = (problem.total_k, problem.kv_heads) if name in _OF_KEYS else (problem.total_q, problem.heads)
    strides = outer_strides(problem, name, (heads, problem.head_dim))
    if strides is None:
        return None
    of_token, of_head = strides
    return HeadTiles(problem.dtype, 1, length, heads, problem.head_dim, 0, of_token, of_head, height)


def packed_lengths(problem: Problem) -> tuple[int, int]:
    """Queries and keys of a packed sequence, in the mean."""
    count = max(1, problem.sequences)
    return -(-problem.total_q // count), -(-problem.total_k // count)


def tile_reasons(problem: Problem, found: Mapping[str, HeadTiles | None]) -> Iterator[str]:
    """Why the copy engine cannot take these tiles from tensors of a problem, by name."""
    for name, tiles in found.items():
        if tiles is None:
            yield f"the elements of a head of {name} are not neighbours"
        elif not problem.traits.aligned(name) or any(stride % VECTOR for stride in tiles.strides):
            yield f"the heads of {name} do not begin at multiples of {VECTOR} bytes"
        elif not all(0 < stride < _MOST_STRIDE for stride in tiles.strides):
            yield f"{name} is expanded, or reaches beyond {_MOST_STRIDE} bytes"

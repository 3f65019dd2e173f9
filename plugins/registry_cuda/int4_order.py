"""The order in which the tensor cores read a 4-bit weight, and plain torch that brings a packed weight into it.

A stripe is 32 columns, a chunk 32 k's. Lane ``4 * g + t`` of a warp has, of each stripe and chunk, the columns
``4 * g`` to ``4 * g + 3`` and the k's ``8 * t`` to ``8 * t + 7``: four words, ``[tile, step]``, each with two of those
columns and four of those k's, in the order of the registers of PTX's m16n8k16: ``tile`` is the pair of columns,
``step`` the half of the k's. Place ``p`` of a word has column ``p % 2`` of its pair, and k ``p // 2 % 2 * 2 + p // 4``
of its half.
"""

from __future__ import annotations

import torch

from registry import Problem

CHUNK = 32
STRIPE = 32
WIDEST = 128
"""Columns of the widest block: a weight is padded to whole ones."""

_PER_WORD = 8
_LANES_K = 4
_LANES_N = 8
_LONGEST_UNIT = 128


def unit(problem: Problem) -> int:
    """The k's with one scale; where a column has one scale, what fp32 accumulates without a loss that shows."""
    return int(problem.group_size) if problem.group_size in (32, 64, 128) else _LONGEST_UNIT


def chunks(problem: Problem) -> int:
    """Chunks of the prepared weight: K in whole units."""
    size = unit(problem)
    return -(-int(problem.k) // size) * (size // CHUNK)


def stripes(n: int) -> int:
    """Stripes of the prepared weight."""
    return -(-n // WIDEST) * (WIDEST // STRIPE)


def packed(qweight: torch.Tensor, problem: Problem) -> torch.Tensor:
    """int32 ``[K / 8, N]`` as int32 ``[stripes, chunks, lanes, 4]``; what is added is zero."""
    words = _padded(qweight, chunks(problem) * _LANES_K)
    # [chunk, t, stripe, g, column] -> [column, stripe, chunk, g, t]
    columns = words.view(chunks(problem), _LANES_K, -1, _LANES_N, 4).permute(4, 2, 0, 3, 1)
    parts = [_merged(columns[2 * tile], columns[2 * tile + 1], step) for tile in (0, 1) for step in (0, 1)]
    return torch.stack(parts, dim=-1).flatten(2, 3)


def factors(scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    """``[groups, stripes, 8, 1 or 2, 4]``: a lane's four scales, and its four zero points behind them."""
    kinds = [scales] if zeros is None else [scales, zeros]
    shaped = [_padded(kind, kind.shape[0]).view(kind.shape[0], -1, _LANES_N, 4) for kind in kinds]
    return torch.stack(shaped, dim=3)


def _padded(values: torch.Tensor, rows: int) -> torch.Tensor:
    more = stripes(values.shape[1]) * STRIPE - values.shape[1]
    return torch.nn.functional.pad(values, (0, more, 0, rows - values.shape[0])).contiguous()


def _merged(one: torch.Tensor, other: torch.Tensor, step: int) -> torch.Tensor:
    """Half of the k's of two columns in one word."""
    return _spread(one >> (16 * step)) | _spread(other >> (16 * step)) << 4


def _spread(half: torch.Tensor) -> torch.Tensor:
    """Nibbles 0, 1, 2, 3 to the places 0, 4, 2, 6."""
    return (half & 0x0F0F) | (half & 0xF0F0) << 12

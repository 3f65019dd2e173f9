"""Weights made 2:4 sparse by magnitude."""

from __future__ import annotations

from itertools import combinations, product

import torch

from ..errors import InvalidArgumentError
from ..packed.layout import piece
from .checks import check_dense
from .layout import compressed, greatest
from .weight import Sparse24Weight

_ROWS = [[int(place in pair) for place in range(4)] for pair in combinations(range(4), 2)]
_BLOCKS = [rows for rows in product(_ROWS, repeat=4) if all(sum(column) == 2 for column in zip(*rows, strict=True))]
"""The 90 masks of four by four with two elements in each row and in each column."""


def sparsify24(weight: torch.Tensor, transposable: bool = False) -> Sparse24Weight:
    """Keep the two greatest magnitudes of each four elements of a weight ``[N, K]`` along K; of equal ones the first.

    transposable  keep two of each four along N, too, so that the transposed weight is 2:4 sparse, for the gradients in
                  training: for each block of four by four the best of all 90 masks, with the greatest sum of
                  magnitudes; N must be a multiple of 4
    Raises InvalidArgumentError for anything else, and for a weight that holds NaN or infinity.
    """
    if not isinstance(transposable, bool):
        raise InvalidArgumentError(f"sparsify24: transposable must be True or False, got {transposable!r}")
    given = check_dense("sparsify24", weight)
    n, k = given.shape
    if transposable and n % 4:
        raise InvalidArgumentError(f"sparsify24: weight has N={n}", hint="transposable=True takes a multiple of 4")
    keep = _best_blocks if transposable else _best_pairs
    # 16 comparisons for each four elements, or 90 sums for each 16
    pieces = [compressed(rows, keep(rows)) for rows in torch.split(given, max(4, piece(k) // 32 * 4))]
    values, meta = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Sparse24Weight(values, meta)


def _magnitudes(rows: torch.Tensor) -> torch.Tensor:
    if not rows.isfinite().all():
        raise InvalidArgumentError("sparsify24: the weight holds NaN or infinity")
    return rows.float().abs()


def _best_pairs(rows: torch.Tensor) -> torch.Tensor:
    return greatest(_magnitudes(rows).unflatten(1, (-1, 4)))


def _best_blocks(rows: torch.Tensor) -> torch.Tensor:
    blocks = _magnitudes(rows).unflatten(0, (-1, 4)).unflatten(2, (-1, 4)).transpose(1, 2)
    patterns = torch.tensor(_BLOCKS, device=rows.device)
    sums = blocks.flatten(2) @ patterns.flatten(1).T.to(blocks.dtype)
    best: torch.Tensor = patterns[sums.argmax(-1)].bool().transpose(1, 2)
    return best.flatten(0, 1)

"""Lengths of packed sequences and the offsets at which these begin: distributions, reading and drawing them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch

from ...problem import Problem
from .logits import pairs_within, window_of

PACKED_LENGTHS = ("uniform", "skewed")
"""Distributions of lengths: equal for all sequences; the i-th has 1 / i of the first's."""


def sequence_bounds(offsets: torch.Tensor, total: int) -> list[tuple[int, int]]:
    """First token and end of each sequence, clamped to 0 to ``total``, after reading the offsets to the host.

    Of meta tensors, which have no values, all tokens are the first sequence's: shapes of results do not depend on it.
    """
    if offsets.is_meta:
        return [(0, total), *[(total, total)] * (len(offsets) - 2)]
    ends = accumulate((min(max(offset, 0), total) for offset in offsets.tolist()), max)
    return list(pairwise(ends))


def packed_lengths(total: int, problem: Problem) -> list[int]:
    """The length of each sequence by the problem's distribution, falling except for rounding; they sum to ``total``."""
    even = problem.lengths == "uniform"
    shares = [1.0 if even else 1 / (place + 1) for place in range(problem.sequences)]
    whole = sum(shares)
    bounds = [0, *(int(total * end / whole + 0.5) for end in accumulate(shares))]
    return [end - begin for begin, end in pairwise(bounds)]


def packed_pairs(problem: Problem) -> int:
    """Pairs of a query and a key that it sees, of all sequences and one head."""
    lengths = zip(packed_lengths(problem.total_q, problem), packed_lengths(problem.total_k, problem), strict=True)
    return sum(pairs_within(rows, keys, problem.causal, window_of(problem)) for rows, keys in lengths)


def draw_packed_offsets(
    problem: Problem, generator: torch.Generator, empty: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets of queries and of keys, int32 ``[sequences + 1]``: the problem's lengths in one random order.

    ``empty``: of two or more sequences every other one has no queries, and every third no keys.
    """
    device, sequences = generator.device, problem.sequences
    order = torch.randperm(sequences, device=device, generator=generator)
    queries, keys = (
        torch.tensor(packed_lengths(total, problem), dtype=torch.int32, device=device)[order]
        for total in (problem.total_q, problem.total_k)
    )
    if empty and sequences > 1:
        queries[0 : sequences - 1 : 2] += queries[1::2]
        queries[1::2] = 0
        keys[1::3] += keys[0 : sequences - 1 : 3]
        keys[0 : sequences - 1 : 3] = 0
    return _offsets(queries), _offsets(keys)


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
    found[1:] = lengths.cumsum(0, dtype=torch.int32)
    return found

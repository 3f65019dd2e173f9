"""Lengths of packed sequences and the offsets at which these begin: distributions, and drawing them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from ...problem import Problem
from ..segments import divided
from .logits import pairs_within, window_of

PACKED_LENGTHS = ("uniform", "skewed")
"""Distributions of lengths: equal for all sequences; the i-th has 1 / i of the first's."""


def packed_lengths(total: int, problem: Problem) -> list[int]:
    """The length of each sequence by the problem's distribution, falling except for rounding; they sum to ``total``."""
    return divided(total, problem.sequences, skewed=problem.lengths != "uniform")


def packed_pairs(problem: Problem) -> int:
    """Pairs of a query and a key that it sees, of all sequences and one head."""
    lengths = zip(packed_lengths(problem.total_q, problem), packed_lengths(problem.total_k, problem), strict=True)
    return sum(pairs_within(rows, keys, problem.causal, window_of(problem)) for rows, keys in lengths)


def drawn_lengths(problem: Problem, generator: torch.Generator, empty: bool = False) -> tuple[list[int], list[int]]:
    """Queries and keys of each sequence: the problem's lengths in one random order, by the generator's first seed.

    They are drawn on the host, which then need not wait for a device to know them. ``empty``: of two or more sequences
    every other one has no queries, and every third no keys.
    """
    order = list(range(problem.sequences))
    random.Random(generator.initial_seed()).shuffle(order)
    falling = (packed_lengths(total, problem) for total in (problem.total_q, problem.total_k))
    queries, keys = ([lengths[place] for place in order] for lengths in falling)
    if empty and len(order) > 1:
        for place in range(1, len(order), 2):
            queries[place - 1], queries[place] = queries[place - 1] + queries[place], 0
        for place in range(1, len(order), 3):
            keys[place], keys[place - 1] = keys[place] + keys[place - 1], 0
    return queries, keys


def tokens_of(lengths: Sequence[int]) -> list[slice]:
    """The tokens of each sequence."""
    return [slice(*ends) for ends in pairwise([0, *accumulate(lengths)])]


def offsets_of(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where sequences begin, and the end of the last: int32 ``[sequences + 1]``."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

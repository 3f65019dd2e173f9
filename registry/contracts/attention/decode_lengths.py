"""Lengths of sequences in a cache: their distributions, and the keys that queries see of them."""

from __future__ import annotations

from collections import Counter

import torch

from ...problem import Problem

LENGTHS = ("full", "uniform", "skewed")
"""Distributions of lengths: all fill their room; evenly spread from short to full; the i-th has 1 / i of the room."""


def decode_window(problem: Problem) -> int:
    """The argument ``window`` of a problem's calls: one less than its span, -1 where there is none."""
    return int(problem.span) - 1


def lengths_of(problem: Problem) -> list[int]:
    """The length of each sequence, the longest one, which fills its room, last."""
    batch, most = problem.batch, problem.kv_len
    if problem.lengths == "full":
        return [most] * batch
    if problem.lengths == "uniform":
        return [max(1, most * (place + 1) // batch) for place in range(batch)]
    return [max(1, most // (batch - place)) for place in range(batch)]


def keys_read(problem: Problem) -> int:
    """Keys of all sequences that some query of theirs sees, of one head."""
    reach = problem.span + problem.q_len - 1 if problem.span else problem.kv_len
    return sum(min(length, reach) for length in lengths_of(problem))


def pairs_seen(problem: Problem) -> int:
    """Pairs of a query and a key that it sees, of all sequences and one head."""
    reach, rows = problem.span or problem.kv_len, problem.q_len
    # the last token sees a sequence's keys up to the whole length, each before it one less
    lengths = Counter(lengths_of(problem))
    return sum(
        count * (_seen_up_to(length, reach) - _seen_up_to(length - rows, reach)) for length, count in lengths.items()
    )


def _seen_up_to(length: int, reach: int) -> int:
    """The sum of ``min(keys, reach)`` over ``keys`` from 1 to ``length``, 0 for a length below 1."""
    near = max(0, min(length, reach))
    return near * (near + 1) // 2 + max(0, length - near) * near


def draw_lengths(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Lengths by the problem's distribution in random order, int32 ``[batch]``."""
    lengths = torch.tensor(lengths_of(problem), dtype=torch.int32, device=generator.device)
    return lengths[torch.randperm(problem.batch, device=generator.device, generator=generator)]


def draw_short(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Any lengths, int32 ``[batch]``: of two or more sequences one is empty and one fills its room."""
    lengths = torch.randint(
        problem.kv_len + 1, (problem.batch,), dtype=torch.int32, device=generator.device, generator=generator
    )
    if problem.batch > 1:
        lengths[0], lengths[-1] = 0, problem.kv_len
    return lengths

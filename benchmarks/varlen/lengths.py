"""Lengths of the sequences of a benchmark: whole numbers of at least 1 that sum to a number of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise


def _shared(tokens: int, shares: list[float]) -> list[int]:
    """Lengths in proportion to ``shares``, each at least 1."""
    free, whole = tokens - len(shares), sum(shares)
    bounds = [0, *(int(free * end / whole + 0.5) for end in accumulate(shares))]
    return [1 + end - begin for begin, end in pairwise(bounds)]


def equal(tokens: int, sequences: int) -> list[int]:
    """All alike, but for rounding."""
    return _shared(tokens, [1.0] * sequences)


def uniform(tokens: int, sequences: int) -> list[int]:
    """Drawn evenly between none and twice the mean, with one seed."""
    draw = random.Random(0)
    return _shared(tokens, [draw.random() for _ in range(sequences)])


def skewed(tokens: int, sequences: int) -> list[int]:
    """The i-th has 1 / i of the first, in a random order."""
    found = _shared(tokens, [1 / (place + 1) for place in range(sequences)])
    random.Random(0).shuffle(found)
    return found


DISTRIBUTIONS: Mapping[str, Callable[[int, int], list[int]]] = {"equal": equal, "uniform": uniform, "skewed": skewed}


def offsets_of(lengths: list[int]) -> list[int]:
    """The first token of each sequence and the end of the last."""
    return [0, *accumulate(lengths)]

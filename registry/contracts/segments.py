"""Rows that are divided among experts or packed sequences: how many each has, and where offsets say that it begins."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch

from ..errors import InvalidArgumentError
from ..problem import Problem

MOST_PARTS = 2**17
"""The most experts or sequences of a problem: the host makes lists of them, and models have a hundredth of it."""


def check_number_of(problem: Problem, name: str) -> None:
    """Raise InvalidArgumentError for more parts, the dimension ``name``, than a list on the host is made of."""
    parts = int(problem.dims[name])
    if parts > MOST_PARTS:
        raise InvalidArgumentError(
            f"{problem.op}: {name} is {parts}, and the host makes a list of them",
            hint=f"expected at most {MOST_PARTS}",
        )


def spans(offsets: torch.Tensor, rows: int) -> list[tuple[int, int]]:
    """First row and end of each part, clamped to 0 to ``rows``, after reading the offsets to the host.

    Of meta tensors, which have no values, all rows are the first part's: shapes of results do not depend on it.
    """
    if offsets.is_meta:
        return [(0, rows), *[(rows, rows)] * (len(offsets) - 2)]
    ends = accumulate((min(max(offset, 0), rows) for offset in offsets.tolist()), max)
    return list(pairwise(ends))


def divided(rows: int, parts: int, *, skewed: bool) -> list[int]:
    """The number of rows of each part, falling except for rounding; they sum to ``rows``.

    ``skewed``: the i-th part has 1 / i of the first's; else all have equally many.
    """
    shares = [1 / (place + 1) if skewed else 1.0 for place in range(parts)]
    whole = sum(shares)
    bounds = [0, *(int(rows * end / whole + 0.5) for end in accumulate(shares))]
    return [end - begin for begin, end in pairwise(bounds)]

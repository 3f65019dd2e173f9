"""Quantiles of Student's t, which neither the standard library nor numpy has."""

from __future__ import annotations

import math
from functools import lru_cache

_HALVINGS = 80


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """The quantile at ``probability`` (0.5 or more) of Student's t; between whole degrees of freedom interpolated.

    Linear in the reciprocal of the degrees of freedom (as printed tables are read), at least 1.
    """
    below = max(1, math.floor(freedom))
    low = _quantile(probability, below)
    if freedom <= below:
        return low
    high = _quantile(probability, below + 1)
    part = (1 / below - 1 / freedom) / (1 / below - 1 / (below + 1))
    return low + part * (high - low)


def _quantile(probability: float, freedom: int) -> float:
    # the tail probability is exact; t at one degree of freedom (a tangent) bounds what is searched
    low, high = 0.0, math.tan(math.pi * (probability - 0.5)) + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """P(|T| < t). Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for step in range((freedom - 1) // 2 if odd else freedom // 2):
        total += term
        place = 2 * step + (2 if odd else 1)
        term *= cosine * cosine * place / (place + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total

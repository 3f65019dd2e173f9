"""Quantiles of Student's t, which neither the standard library nor numpy has."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_ANGLES = np.linspace(0.0, math.pi / 2, 4001)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """The quantile at ``probability`` (0.5 or more) of Student's t with ``freedom`` degrees of freedom, at least 1.

    With t = sqrt(freedom) * tan(angle) the density of the angle is cos(angle) ** (freedom - 1) but for a factor
    (Abramowitz and Stegun, 26.7.3 and 26.7.4); it is integrated by trapezoids.
    """
    density = np.cos(_ANGLES) ** (max(1.0, freedom) - 1)
    within = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = np.interp(2 * probability - 1, within / within[-1], _ANGLES)
    return math.sqrt(max(1.0, freedom)) * math.tan(angle)

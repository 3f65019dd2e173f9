"""Tolerances from roundings: the unit roundoff of each dtype, and how much a sum of many terms may err."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from registry import Problem, Tolerance

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number, by dtype."""


def of_a_sum(units: float, terms: Callable[[Problem], int]) -> Tolerance:
    """A tolerance for outputs that are sums of ``terms(problem)`` products, accumulated in at least float32.

    An output may be off by ``units`` roundings of itself and of the root mean square of its row, since terms cancel,
    and by ``sqrt(terms)`` times as many of the accumulator, which is as large as they are.
    """

    def scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
        unit = ROUNDOFF.get(str(problem.dtype), ROUNDOFF["float32"])
        accumulated = math.sqrt(terms(problem)) * min(unit, ROUNDOFF["float32"]) / unit
        rms = reference.square().mean(-1, keepdim=True).sqrt()
        return (reference.abs() + rms) * (1 + accumulated)

    return Tolerance(
        rtol={name: units * unit for name, unit in ROUNDOFF.items()},
        atol={"float64": 1e-300, "float32": 1e-37, "float16": 2.0**-24, "bfloat16": 1e-37},
        scale=scale,
    )

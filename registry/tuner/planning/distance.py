"""How far problems of one op are from each other, and the order of tuning in which the near ones come first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...contract import Op
from ...dispatch.plans.plan import Candidate
from .problems import ProblemPlan

_STATIC_WEIGHT = 2.0
_OTHER = 3.0
"""Added for each value that is no number and differs, e.g. a dtype: a factor of 20 along a dynamic dimension."""


def distance(op: Op, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Distance of two problems: logarithms along the dynamic dimensions, more along static ones, most elsewhere."""
    return sum(_along(name in op.dynamic, value, other.get(name)) for name, value in one.items())


def seeds_of(plan: ProblemPlan, tuned: Iterable[tuple[Mapping[str, Any], Candidate]]) -> list[Candidate]:
    """Each candidate of ``tuned`` (dimensions, winner) once, the nearest problem's first."""
    dims = plan.problem.dims
    unique: dict[str, Candidate] = {}
    for _, candidate in sorted(tuned, key=lambda entry: distance(plan.op, dims, entry[0])):
        unique.setdefault(candidate.key, candidate)
    return list(unique.values())


def ordered(plans: Sequence[ProblemPlan]) -> list[ProblemPlan]:
    """The plans so that each has near ones before it: ops as they came, each from its most central problem outwards."""
    groups: dict[str, list[ProblemPlan]] = {}
    for plan in plans:
        groups.setdefault(plan.op.name, []).append(plan)
    return list(itertools.chain.from_iterable(_outwards(group) for group in groups.values()))


def _outwards(plans: Sequence[ProblemPlan]) -> list[ProblemPlan]:
    """Prim's order: each next plan is nearest to any plan before it; the first of equals."""
    distances = np.array([[distance(one.op, one.problem.dims, two.problem.dims) for two in plans] for one in plans])
    placed = [int(distances.sum(axis=1).argmin())]
    nearest = distances[placed[0]].copy()
    while len(placed) < len(plans):
        nearest[placed] = math.inf
        placed.append(int(nearest.argmin()))
        nearest = np.minimum(nearest, distances[placed[-1]])
    return [plans[number] for number in placed]


def _along(dynamic: bool, one: Any, other: Any) -> float:
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool) and min(one, other) > 0:
        return (1.0 if dynamic else _STATIC_WEIGHT) * abs(math.log(one / other))
    return 0.0 if one == other and type(one) is type(other) else _OTHER

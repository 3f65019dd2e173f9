"""How far problems of one op are from each other, and the order of tuning in which the near ones come first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract import Op
from ...dispatch.plans.plan import Candidate
from .problems import ProblemPlan

_STATIC_WEIGHT = 2.0
_OTHER = 3.0
"""Distance of two different values that are no sizes, e.g. dtypes: as of a factor of 20 in a dynamic dimension."""


_DIGITS = 9
"""Decimals to which distances are rounded before they are ordered, so that rounding errors do not decide."""


def seeds_of(plan: ProblemPlan, tuned: Sequence[tuple[Mapping[str, Any], Candidate]]) -> list[Candidate]:
    """Each candidate of ``tuned`` (dimensions, winner) once; the winner of the nearest problem first."""
    far = Distances(plan.op, [plan.problem.dims, *(dims for dims, _ in tuned)]).of(0)[1:]
    nearest_first = [tuned[number][1] for number in np.argsort(np.round(far, _DIGITS), kind="stable")]
    unique: dict[str, Candidate] = {}
    for candidate in nearest_first:
        unique.setdefault(candidate.key, candidate)
    return list(unique.values())


def ordered(plans: Sequence[ProblemPlan]) -> list[ProblemPlan]:
    """The plans in the order of tuning: op by op, each op from its most central problem outwards."""
    groups: dict[str, list[ProblemPlan]] = {}
    for plan in plans:
        groups.setdefault(plan.op.name, []).append(plan)
    return list(itertools.chain.from_iterable(_outwards(group) for group in groups.values()))


def _outwards(plans: Sequence[ProblemPlan]) -> list[ProblemPlan]:
    """The plans in Prim's order: the next plan is the one nearest to any earlier plan; of equals the first."""
    distances = Distances(plans[0].op, [plan.problem.dims for plan in plans])
    total = [float(distances.of(number).sum()) for number in range(len(plans))]
    placed = [int(np.argmin(np.round(total, _DIGITS)))]
    nearest = distances.of(placed[0])
    while len(placed) < len(plans):
        nearest[placed] = math.inf
        placed.append(int(nearest.argmin()))
        nearest = np.minimum(nearest, distances.of(placed[-1]))
    return [plans[number] for number in placed]


class Distances:
    """Distances between problems of one op, computed when asked for: a thousand problems have a million.

    A distance adds up differences of logarithms of sizes, which count more along static dimensions, and a large
    constant for each other value that differs.
    """

    def __init__(self, op: Op, problems: Sequence[Mapping[str, Any]]) -> None:
        self._names = list(dict.fromkeys(name for dims in problems for name in dims))
        self._codes: dict[Any, int] = {}
        rows = [self._row(dims) for dims in problems]
        self._logs = np.array([logs for logs, _ in rows]).reshape(len(rows), len(self._names))
        self._kinds = np.array([kinds for _, kinds in rows]).reshape(len(rows), len(self._names))
        self._weights = np.array([1.0 if name in op.dynamic else _STATIC_WEIGHT for name in self._names])

    def of(self, number: int) -> NDArray[np.float64]:
        """The distance of every problem from the one at ``number``."""
        return self._from(self._logs[number], self._kinds[number])

    def nearest(self, dims: Mapping[str, Any], most: int) -> list[int]:
        """The numbers of at most ``most`` problems, nearest to ``dims`` first; equally near ones in their own order."""
        logs, kinds = self._row(dims)
        far = self._from(np.array(logs), np.array(kinds))
        return [int(number) for number in np.argsort(np.round(far, _DIGITS), kind="stable")[:most]]

    def _row(self, dims: Mapping[str, Any]) -> tuple[list[float], list[int]]:
        """Logarithms of the sizes (nan for other values), and a code for each value: equal codes for equal values."""
        values: list[Any] = [dims.get(name) for name in self._names]
        logs = [math.log(value) if _is_size(value) else math.nan for value in values]
        return logs, [self._codes.setdefault((type(value), value), len(self._codes)) for value in values]

    def _from(self, logs: NDArray[np.float64], kinds: NDArray[np.int64]) -> NDArray[np.float64]:
        apart = np.abs(self._logs - logs) * self._weights
        others = np.where(self._kinds == kinds, 0.0, _OTHER)
        return np.asarray(np.where(np.isnan(apart), others, apart).sum(axis=1), dtype=np.float64)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and value is not True and value > 0

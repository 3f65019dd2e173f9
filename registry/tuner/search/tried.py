"""Which candidates of a joint space are untried, being tried, or known by their time or failure."""

from __future__ import annotations

import math

import numpy as np

from ...dispatch.plans.plan import Candidate
from .joint_space import JointSpace

_BEST_KEPT = 3


class Tried:
    """Every candidate of a joint space by its number, and what became of it.

    ``untried[number]`` is true until the candidate is begun or told; ``pending`` are begun and not told, with whether
    the search itself asked for them; ``logs`` are log times in µs; ``failed`` is a set in the order of telling.
    ``told`` counts what was told, and ``changes`` lists in order what was begun (None) or told (log time, or infinity
    for a failure): an arm that keeps a model of its own follows them.
    """

    def __init__(self, space: JointSpace) -> None:
        self.space = space
        self.untried = np.ones(len(space), dtype=bool)
        self.left = len(space)
        self.pending: dict[int, bool] = {}
        self.logs: dict[int, float] = {}
        self.failed: dict[int, None] = {}
        self.told = 0
        self.changes: list[tuple[int, float | None]] = []

    @property
    def best(self) -> float:
        """The smallest log time, infinity while there is none."""
        return min(self.logs.values(), default=math.inf)

    def begin(self, number: int, *, asked: bool) -> None:
        """The candidate is being tried: nobody else shall propose it. ``asked``: this search proposed it."""
        if self.untried[number]:
            self.untried[number] = False
            self.left -= 1
        if number in self.pending:
            return
        self.pending[number] = asked
        if number not in self.logs and number not in self.failed:
            self.changes.append((number, None))

    def tell(self, number: int, median_us: float | None) -> bool:
        """The candidate's time, None when it failed. Returns whether this search had proposed it."""
        self.begin(number, asked=False)
        asked = self.pending.pop(number)
        self.logs.pop(number, None)
        self.failed.pop(number, None)
        if median_us is None or not 0 < median_us < math.inf:
            self.failed[number] = None
        else:
            self.logs[number] = math.log(median_us)
        self.told += 1
        self.changes.append((number, self.logs.get(number, math.inf)))
        return asked

    def is_untried(self, candidate: Candidate) -> bool:
        """Whether the candidate is valid here and neither known nor being tried."""
        number = self.space.number(candidate)
        return number is not None and bool(self.untried[number])

    def near_best(self, distance: int) -> list[int]:
        """Untried candidates at this L1 distance from one of the three fastest; some may be listed twice."""
        found: list[int] = []
        for centre in sorted(self.logs, key=lambda number: self.logs[number])[:_BEST_KEPT]:
            found += [number for number in self.space.near(centre, distance) if self.untried[number]]
        return found

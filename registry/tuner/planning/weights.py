"""The weight of a problem in a program: its number of calls times its duration.

The heaviest problems are tuned first, and get more trials than light ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tuning_db import Decision

from ...contract import Op
from ...device import Device
from ...problem import Problem
from ..events import Result, Saving
from ..limits import DEFAULT_SECONDS, Budget
from .distance import ordered
from .problems import ProblemPlan

BATCH = 64
"""Problems of each device that share finals: their winners are stored at the end of the batch."""

_FIRST_BATCH = 8
"""Problems of the first batch of a weighted run; each next batch is twice as large. Heavy ones are stored early."""

_LIGHT = 0.01
"""The lightest problems that together take less than this share of the program's time get only the starts."""

_STARTS = 16
"""Trials of a light problem: the defaults, at most five seeds of neighbours, three random candidates."""

_LEAST, _MOST = 0.5, 4.0
"""The smallest and the largest factor by which a weight changes the usual budget."""

_BYTES_PER_US = {"cuda": 2e6, "cpu": 2e4}
_FLOP_PER_US = {"cuda": 2e8, "cpu": 2e5}
_START_US = {"cuda": 3.0, "cpu": 3.0}
"""Rough bytes/µs, FLOP/µs and launch time in µs of a GPU and of a few cores: they only decide the order of tuning."""


@dataclass(frozen=True)
class Weights:
    """The share of the program's time that each problem takes (in all 1); without ``shares`` all weigh equally."""

    shares: Mapping[Problem, float] = field(default_factory=dict)
    counts: Mapping[Problem, int] = field(default_factory=dict)

    def batches(self, plans: Sequence[ProblemPlan], devices: int = 1) -> list[Sequence[ProblemPlan]]:
        """The plans in the order of tuning; within a batch near problems follow each other.

        Several ``devices`` share larger batches: each of them waits for the others a few times in a batch.
        """
        most = BATCH * devices
        if not self.shares:
            in_order = ordered(plans)
            return [in_order[start : start + most] for start in range(0, len(in_order), most)]
        left = sorted(plans, key=lambda plan: -self.shares.get(plan.problem, 0.0))
        batches: list[Sequence[ProblemPlan]] = []
        size = _FIRST_BATCH
        while left:
            batches.append(ordered(left[:size]))
            left, size = left[size:], min(2 * size, most)
        return batches

    def budget(self, problem: Problem, budget: Budget) -> Budget:
        """The budget of one problem's search by its share of the program's time: half to four times the usual one.

        A number that the user asked for is a limit, and is not exceeded.
        """
        if not self.shares:
            return budget
        share = self.shares.get(problem, 0.0)
        if problem in self._light:
            return replace(budget, trials=min(_STARTS, budget.most_trials))
        factor = min(max(share * len(self.shares), _LEAST), _MOST)
        less = min(factor, 1.0)
        return Budget(
            max(factor, 1.0) * DEFAULT_SECONDS if budget.seconds is None else less * budget.seconds,
            None if budget.trials is None else math.ceil(less * budget.trials),
            round(factor * budget.cap),
        )

    def saving(self, results: Iterable[Result]) -> Saving | None:
        """The time that winners save the program; None without counts of calls."""
        if not self.counts:
            return None
        decided = [result for result in results if result.median_us is not None]
        low, value, high, winner = (0.0,) * 4
        for result in decided:
            us = self.counts.get(result.problem, 1) * (result.median_us or 0.0)
            if result.default_ratio is not None:
                low += us * result.default_ratio.low
                value += us * result.default_ratio.value
                high += us * result.default_ratio.high
                winner += us
        share = sum(self.shares.get(result.problem, 0.0) for result in decided)
        return Saving(share, value, low, high, winner)

    @cached_property
    def _light(self) -> frozenset[Problem]:
        """The lightest problems, as many as make up less than ``_LIGHT`` together."""
        light, total = [], 0.0
        for problem, share in sorted(self.shares.items(), key=lambda entry: entry[1]):
            total += share
            if total >= _LIGHT:
                break
            light.append(problem)
        return frozenset(light)


def weigh(
    plans: Iterable[ProblemPlan],
    counts: Mapping[Problem, int],
    measured_us: Callable[[ProblemPlan], float | None],
) -> Weights:
    """Weights of problems: counts of calls times the default's measured time, or times the floor where none is known.

    A problem that cannot be tuned here counts too: it is part of the program's time.
    """
    if not counts:
        return Weights()
    times = {
        plan.problem: counts.get(plan.problem, 1) * (measured_us(plan) or floor_us(plan.op, plan.problem, plan.device))
        for plan in plans
    }
    total = sum(times.values())
    return Weights({problem: us / total for problem, us in times.items()}, dict(counts))


def weigh_roughly(counts: Mapping[Problem, int], op_of: Callable[[str], Op], device: Device) -> Mapping[Problem, float]:
    """The share of the counted calls' time that each problem takes, by its floor alone."""
    times = {problem: count * floor_us(op_of(problem.op), problem, device) for problem, count in counts.items()}
    total = sum(times.values())
    return {problem: us / total for problem, us in times.items()}


def floor_us(op: Op, problem: Problem, device: Device) -> float:
    """A rough bound of a call's time in µs: a launch, plus the longer of moving its bytes and computing its FLOP."""
    floor = op.floor(problem)
    moving, computing = floor.bytes / _BYTES_PER_US[device.type], floor.flop / _FLOP_PER_US[device.type]
    return _START_US[device.type] + max(moving, computing)


def default_us(decision: Decision | None) -> float | None:
    """The default's time in µs when the problem was decided, None where it was not measured."""
    if decision is None or decision.default_ratio is None:
        return None
    return decision.median_us * decision.default_ratio.value

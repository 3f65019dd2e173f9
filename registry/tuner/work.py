"""What a run notes of its problems and its device, so that a reader of the database can relate times to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..contract import Op
from ..device import Device
from ..problem import Problem
from .measure.roofline import Peaks
from .planning.problems import ProblemPlan
from .stored_winners import problem_key


def run_details(plans: Iterable[ProblemPlan], device: Device) -> dict[str, Any]:
    """The details of a run: the number of problems, their ``work``, and the ``peaks`` of the device where known.

    ``work`` maps keys of problems to (bytes, FLOP) of their floors, ``peaks`` has bytes_per_us and flop_per_us.
    """
    plans = list(plans)
    details: dict[str, Any] = {"problems": len(plans), "work": work_of((plan.op, plan.problem) for plan in plans)}
    peaks = Peaks.of(device)
    return details if peaks == Peaks() else {**details, "peaks": asdict(peaks)}


def work_of(problems: Iterable[tuple[Op, Problem]]) -> Mapping[str, tuple[float, float]]:
    """Key of a problem -> (bytes, FLOP) of its floor; problems whose op does not tell it are left out."""
    found = {}
    for op, problem in problems:
        try:
            floor = op.floor(problem)
            work = float(floor.bytes), float(floor.flop)
        except Exception:  # an author's code raises what it will; without its work a problem is left out of a chart
            continue
        if all(map(math.isfinite, work)):
            found[problem_key(op, problem).key] = work
    return found

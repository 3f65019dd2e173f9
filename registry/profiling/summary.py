"""The calls of a trace, summed by op, problem and implementation, with the share of the floor that each reaches."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ..contract import Op
from ..dispatch.torch_side.profiles import dims_of
from ..errors import RegistryError
from ..problem import Problem
from .trace import ProfiledCall, Trace

FloorUs = Callable[[Op, Problem], float | None]
"""The least time of a problem in µs; None where it is not known."""


@dataclass(frozen=True)
class ProfiledRow:
    """Calls of one problem by one implementation.

    Times are of the device where calls launched kernels, else of the host. ``share``: of the kernels' time, or of the
    program's. ``floor_us``: the least time that the device needs; None where it is not known.
    """

    op: str
    dims: str
    implementation: str
    calls: int
    total_us: float
    median_us: float
    share: float
    floor_us: float | None

    @property
    def of_floor(self) -> float | None:
        """The share of the floor that the median reaches: 1.0 is as fast as can be."""
        return None if not self.floor_us or not self.median_us else self.floor_us / self.median_us


def summed(trace: Trace, ops: dict[str, Op], floor_us: FloorUs, most_floors: int = 32) -> list[ProfiledRow]:
    """A row for each op, problem and implementation, those with the most time first.

    Floors are asked for the first ``most_floors`` rows: each may have to be measured.
    """
    device = trace.on_device
    whole = trace.device_us if device else trace.host_us
    grouped: dict[tuple[str, str, str], list[ProfiledCall]] = defaultdict(list)
    for call in trace.calls:
        grouped[call.op, call.dims, call.implementation].append(call)
    times = {key: [call.device_us if device else call.host_us for call in calls] for key, calls in grouped.items()}
    rows: list[ProfiledRow] = []
    for key in sorted(times, key=lambda one: -sum(times[one])):
        floor = _floor(key[0], key[1], ops, floor_us) if len(rows) < most_floors else None
        total = sum(times[key])
        share = total / whole if whole else 0.0
        rows.append(ProfiledRow(*key, len(times[key]), total, statistics.median(times[key]), share, floor))
    return rows


def _floor(op: str, dims: str, ops: dict[str, Op], floor_us: FloorUs) -> float | None:
    contract = ops.get(op)
    if contract is None or not dims:
        return None
    try:
        return floor_us(contract, contract.problem_of(dims_of(dims)))
    except RegistryError:  # the program's op has other dimensions than the one that is installed here
        return None

"""What a run notes of its problems and its device, for those who read its times later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.contract import Floor, Op
from registry.contracts import SOFTMAX
from registry.device import Device
from registry.problem import Problem
from registry.tuner.measure.roofline import Peaks
from registry.tuner.planning.problems import ProblemPlan
from registry.tuner.stored_winners import problem_key
from registry.tuner.work import run_details, work_of

PROBLEM = Problem("softmax", {"rows": 64, "cols": 256, "dtype": "float32"})
CPU = Device.of("cpu")


def test_the_floors_of_problems_are_told_by_their_keys() -> None:
    floor = SOFTMAX.floor(PROBLEM)
    details = run_details([ProblemPlan(PROBLEM, SOFTMAX, CPU, ())], CPU)
    assert details == {"problems": 1, "work": {problem_key(SOFTMAX, PROBLEM).key: (floor.bytes, floor.flop)}}
    assert floor.bytes == 2 * 64 * 256 * 4


def test_peaks_that_the_device_tells_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peaks, "of", classmethod(lambda cls, device: cls(4.8e6, 2e9)))
    assert run_details([], CPU)["peaks"] == {"bytes_per_us": 4.8e6, "flop_per_us": 2e9}


def refuses(problem: Problem) -> Floor:
    raise KeyError("an author's mistake")


def endless(problem: Problem) -> Floor:
    return Floor(float("inf"), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", [replace(SOFTMAX, floor=refuses), replace(SOFTMAX, floor=endless)])
def test_a_floor_that_cannot_be_told_costs_its_entry_alone(op: Op) -> None:
    other = Problem("softmax", {"rows": 65, "cols": 256, "dtype": "float32"})
    assert list(work_of([(op, PROBLEM), (SOFTMAX, other)])) == [problem_key(SOFTMAX, other).key]

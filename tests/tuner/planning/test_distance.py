"""Problems are tuned so that each has near ones before it, and seeds come from the nearest first."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from registry.contracts import SOFTMAX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.tuner.planning.distance import Distances, ordered, seeds_of
from registry.tuner.planning.problems import ProblemPlan


def a_plan(rows: int, cols: int, dtype: str = "float32") -> ProblemPlan:
    return ProblemPlan(Problem("softmax", {"rows": rows, "cols": cols, "dtype": dtype}), SOFTMAX, Device.of("cpu"), ())


def test_the_most_central_comes_first_then_outwards() -> None:
    plans = [a_plan(rows, 1024) for rows in (1, 65536, 256, 32, 4096)]
    assert [plan.problem.rows for plan in ordered(plans)] == [256, 32, 4096, 65536, 1]


def test_problems_of_the_same_static_dimensions_stay_together() -> None:
    plans = [a_plan(rows, cols) for rows in (64, 128, 256) for cols in (1024, 32768)]
    columns = [plan.problem.cols for plan in ordered(plans)]
    assert columns in ([1024] * 3 + [32768] * 3, [32768] * 3 + [1024] * 3)


def test_every_plan_is_there_once_and_none_is_no_fault() -> None:
    plans = [a_plan(rows, 64, dtype) for rows in (1, 2, 3) for dtype in ("float32", "bfloat16")]
    assert sorted(str(plan.problem) for plan in ordered(plans)) == sorted(str(plan.problem) for plan in plans)
    assert ordered([]) == []


def test_a_dtype_is_further_than_a_factor_of_ten_in_rows() -> None:
    plans = a_plan(64, 1024), a_plan(640, 1024), a_plan(64, 1024, "bfloat16")
    own, rows, dtype = Distances(SOFTMAX, [plan.problem.dims for plan in plans]).of(0)
    assert own == 0 < rows < dtype


def test_seeds_are_the_nearest_problems_and_each_once() -> None:
    class Any(Implementation):
        op = "softmax"
        name = "acme.any"

        def bind(self, *_: object) -> object:  # type: ignore[override]
            raise AssertionError("never run here")

    near, far = Candidate(Any(), {"a": 1}), Candidate(Any(), {"a": True})
    tuned = [
        (a_plan(4096, 64).problem.dims, far),
        (a_plan(32, 64).problem.dims, near),
        (a_plan(1, 64).problem.dims, near),
    ]
    assert [seed.config["a"] for seed in seeds_of(a_plan(16, 64), tuned)] == [1, True]


def test_distances_of_many_problems_are_those_of_each_pair() -> None:
    sizes: list[Value] = [1, 7, 4096, 0, -3, True, False, 2.5, "none", "7"]
    dims = [{"rows": rows, "cols": cols, "dtype": "float32"} for rows in sizes for cols in (*sizes, 64)]
    many = Distances(SOFTMAX, dims)
    for number in range(0, len(dims), 7):
        found = many.of(number)
        assert found.tolist() == pytest.approx([distance(dims[number], other) for other in dims])


def distance(one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """Of two problems of softmax, by the definition: one dimension after the other."""
    return sum(along(name in SOFTMAX.dynamic, value, other[name]) for name, value in one.items())


def along(dynamic: bool, one: Value, other: Value) -> float:
    sizes = [value for value in (one, other) if isinstance(value, int) and value is not True and value > 0]
    if len(sizes) == 2:
        return (1.0 if dynamic else 2.0) * abs(math.log(sizes[0] / sizes[1]))
    return 0.0 if one == other and type(one) is type(other) else 3.0


def test_of_a_thousand_problems_the_middle_comes_first() -> None:
    plans = [a_plan(1 + rows, 1024) for rows in range(1000)]
    rows = [plan.problem.rows for plan in ordered(plans)]
    assert sorted(rows) == list(range(1, 1001))
    assert rows[0] in {500, 501}, "the middle"

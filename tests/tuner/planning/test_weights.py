"""Weights: what takes most of a program's time is tuned first and longest, and what tuning is worth is told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.events import Result, Saving
from registry.tuner.limits import DEFAULT_SECONDS, DEFAULT_TRIALS, Budget
from registry.tuner.planning.problems import ProblemPlan
from registry.tuner.planning.weights import BATCH, Weights, default_us, floor_us, weigh
from tuning_db import Interval

CPU = Device.of("cpu")
CATALOG = Catalog()
SOFTMAX = CATALOG.op("softmax")


def softmax(rows: int, cols: int = 1024) -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols, "dtype": "float32"})


def plan(problem: Problem, device: Device = CPU) -> ProblemPlan:
    return ProblemPlan(problem, CATALOG.op(problem.op), device, ())


def unmeasured(_: ProblemPlan) -> None:
    return None


def weights(*shares: float) -> Weights:
    return Weights({softmax(number + 1): share for number, share in enumerate(shares)}, {softmax(1): 1})


def won(problem: Problem, median_us: float | None, default_ratio: Interval | None = None) -> Result:
    return Result(problem, "a.one", {}, median_us, None, {}, "new", default_ratio=default_ratio)


def test_a_weight_is_the_count_times_the_time() -> None:
    small, large = softmax(1), softmax(65536)
    found = weigh([plan(small), plan(large)], {small: 1000, large: 10}, unmeasured)
    assert sum(found.shares.values()) == pytest.approx(1)
    floors = {problem: floor_us(SOFTMAX, problem, CPU) for problem in (small, large)}
    assert floors[large] > 100 * floors[small]
    assert found.shares[large] / found.shares[small] == pytest.approx(10 * floors[large] / (1000 * floors[small]))


def test_a_measured_time_takes_the_place_of_the_floor() -> None:
    one, other = softmax(8), softmax(16)
    times = {one: 30.0, other: 20.0}
    found = weigh([plan(one), plan(other)], {one: 2, other: 1}, lambda plan: times[plan.problem])
    assert found.shares == {one: pytest.approx(0.75), other: pytest.approx(0.25)}


def test_a_tiny_problem_still_takes_a_launch() -> None:
    assert floor_us(SOFTMAX, softmax(1, 1), CPU) >= 1
    assert floor_us(SOFTMAX, softmax(1, 1), replace(CPU, type="cuda")) >= 1
    int4 = {"m": 4096, "n": 4096, "k": 4096, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"}
    product = CATALOG.op("gemm_int4").problem_of(int4)
    # 137 GFLOP take longer than moving 75 MB
    assert floor_us(CATALOG.op("gemm_int4"), product, CPU) > 1e5


def test_without_counts_nothing_changes() -> None:
    plans = [plan(softmax(rows)) for rows in range(1, BATCH + 2)]
    plain = weigh(plans, {}, unmeasured)
    assert [len(batch) for batch in plain.batches(plans)] == [BATCH, 1]
    assert [len(batch) for batch in plain.batches(plans, devices=2)] == [BATCH + 1]
    budget = Budget(seconds=3.0)
    assert plain.budget(plans[0].problem, budget) is budget
    assert plain.saving([won(plans[0].problem, 1.0, Interval(2.0, 1.9, 2.1))]) is None


def test_the_heaviest_are_in_the_first_and_small_batch() -> None:
    plans = [plan(softmax(rows)) for rows in range(1, 101)]
    found = weigh(plans, {one.problem: int(one.problem.rows) for one in plans}, lambda plan: 1.0)
    batches = found.batches(plans)
    assert [len(batch) for batch in batches] == [8, 16, 32, 44]
    assert {one.problem.rows for one in batches[0]} == set(range(93, 101))
    assert sorted(one.problem.rows for batch in batches for one in batch) == list(range(1, 101))
    lightest = [max(found.shares[one.problem] for one in batch) for batch in batches]
    assert lightest == sorted(lightest, reverse=True)


def test_the_heavy_get_more_and_the_light_get_the_starts() -> None:
    found = weights(0.9, 0.06, 0.032, 0.004, 0.004)
    assert found.budget(softmax(1), Budget()) == Budget(4 * DEFAULT_SECONDS, None, 4 * DEFAULT_TRIALS)
    assert found.budget(softmax(2), Budget()) == Budget(DEFAULT_SECONDS, None, DEFAULT_TRIALS // 2)
    assert found.budget(softmax(4), Budget()).trials == found.budget(softmax(5), Budget()).trials == 16
    assert found.budget(softmax(3), Budget()).trials is None


def test_one_problem_alone_gets_the_usual() -> None:
    assert weights(1.0).budget(softmax(1), Budget()) == Budget(DEFAULT_SECONDS, None, DEFAULT_TRIALS)


@pytest.mark.parametrize("share", [0.9, 0.06, 0.032, 0.004])
def test_a_limit_that_was_asked_for_is_not_exceeded(share: float) -> None:
    found = weights(0.9, 0.06, 0.032, 0.004, 0.004)
    problem = next(problem for problem, other in found.shares.items() if other == share)
    given = found.budget(problem, Budget(seconds=2.0, trials=7))
    assert 1 <= given.most_trials <= 7
    assert 1.0 <= given.device_seconds <= 2.0


def test_the_saving_is_counted_where_the_default_was_timed() -> None:
    problems = [softmax(rows) for rows in (1, 2, 3, 4)]
    found = Weights(
        dict(zip(problems, (0.5, 0.3, 0.1, 0.1), strict=True)), dict(zip(problems, (10, 4, 2, 1), strict=True))
    )
    saving = found.saving(
        [
            won(problems[0], 2.0, Interval(1.5, 1.25, 2.0)),
            won(problems[1], 5.0),
            won(problems[2], None),
            won(problems[3], 1.0, Interval(1.0, 1.0, 1.0)),
        ]
    )
    assert saving == Saving(pytest.approx(0.9), 10 * 3.0 + 1.0, 10 * 2.5 + 1.0, 10 * 4.0 + 1.0, 10 * 2.0 + 1.0)


def test_a_problem_without_an_own_count_is_called_once() -> None:
    one, other = softmax(1), softmax(2)
    found = weigh([plan(one), plan(other)], {one: 3}, lambda plan: 1.0)
    assert math.isclose(found.shares[other], 0.25)


def test_what_was_decided_without_a_default_says_nothing_of_it() -> None:
    assert default_us(None) is None

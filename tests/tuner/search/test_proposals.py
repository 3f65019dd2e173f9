"""The searcher proposes valid candidates, each once, learns, and ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from optuna.trial import TrialState

from registry.artifact import Built
from registry.contracts import SOFTMAX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config, Space
from registry.tuner.planning.problems import ImplementationPlan, ProblemPlan
from registry.tuner.search.proposals import Searcher
from registry.tuner.search.samplers.names import sampler_named
from registry.tuner.search.studies import Studies

PROBLEM = Problem("softmax", {"rows": 64, "cols": 256, "dtype": "float32"})


class Grid(Implementation):
    """A space with an optimum that no default hits."""

    op = "softmax"
    device_types = frozenset({"cpu"})

    def __init__(self, name: str, optimum: tuple[int, int, int]) -> None:
        self.name = name
        self.optimum = optimum

    def space(self, problem: Problem, device: Device) -> Space:
        axis = [1, 2, 4, 8, 16, 32, 64]
        return Space(a=axis, b=axis, c=axis).require("a * b fits", lambda config: config["a"] * config["b"] <= 512)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise AssertionError("never run here")

    def time(self, config: Config) -> float:
        return 10.0 + sum(
            abs(config[name].bit_length() - 1 - best) for name, best in zip("abc", self.optimum, strict=True)
        )


def a_plan(*implementations: Implementation) -> ProblemPlan:
    device = Device.of("cpu")
    choices = tuple(
        ImplementationPlan(one, one.space(PROBLEM, device), one.default(PROBLEM, device)) for one in implementations
    )
    return ProblemPlan(PROBLEM, SOFTMAX, device, choices)


def drive(searcher: Searcher, trials: int) -> list[tuple[float, Candidate]]:
    told: list[tuple[float, Candidate]] = []
    while len(told) < trials and (asked := searcher.ask(4)):
        for candidate in asked:
            assert isinstance(candidate.implementation, Grid)
            median = candidate.implementation.time(candidate.config)
            searcher.tell(candidate, median)
            told.append((median, candidate))
    return told


def test_every_default_comes_first() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)), Grid("acme.two", (1, 1, 6)))
    first = Searcher(plan).ask(2)
    assert {candidate.key for candidate in first} == {candidate.key for candidate in plan.defaults()}


def test_no_candidate_is_proposed_twice_and_all_are_valid() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)), Grid("acme.two", (1, 1, 6)))
    told = drive(Searcher(plan, seed=3), 80)
    keys = [candidate.key for _, candidate in told]
    assert len(keys) == len(set(keys)) >= 80
    assert all(candidate.config in candidate.implementation.space(PROBLEM, plan.device) for _, candidate in told)


def test_a_small_space_is_exhausted() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)))
    told = drive(Searcher(plan, exhaust=plan.candidates), 10_000)
    assert len(told) == plan.candidates


@pytest.mark.parametrize("seeds", [3, pytest.param(5, marks=pytest.mark.thorough)])
def test_it_finds_what_random_sampling_misses(seeds: int) -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)), Grid("acme.two", (1, 1, 6)))
    found = [min(drive(Searcher(plan, seed=seed), 80), key=lambda pair: pair[0])[0] for seed in range(seeds)]
    everything = [one.time(config) for choice in plan.supported for config in choice.configs
                  for one in [choice.implementation] if isinstance(one, Grid)]  # fmt: skip
    by_chance = [min(random.Random(seed).sample(everything, 80)) for seed in range(seeds)]
    assert sorted(found)[seeds // 2] == 10.0
    assert sum(found) < sum(by_chance)


def test_seeds_come_right_after_the_defaults_unless_they_are_nearly_the_same() -> None:
    grid = Grid("acme.one", (5, 2, 3))
    good, near = {"a": 32, "b": 4, "c": 8}, {"a": 32, "b": 4, "c": 4}
    asked = Searcher(a_plan(grid), seeds=[Candidate(grid, good), Candidate(grid, near)]).ask(3)
    assert asked[1].config == good
    assert asked[2].config != near


def test_failures_are_told_and_not_proposed_again() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)))
    searcher = Searcher(plan)
    failed = set()
    for _ in range(30):
        (candidate,) = searcher.ask(1)
        assert candidate.key not in failed
        failed.add(candidate.key)
        searcher.tell(candidate, None)


def test_a_stored_trial_is_learnt_without_being_asked() -> None:
    grid = Grid("acme.one", (5, 2, 3))
    plan = a_plan(grid)
    searcher = Searcher(plan)
    known = Candidate(grid, {"a": 2, "b": 2, "c": 2})
    searcher.tell(known, 12.0)
    assert known.key not in {candidate.key for candidate in searcher.ask(searcher.size)}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_it_asks_no_more_than_it_is_told(count: int) -> None:
    assert len(Searcher(a_plan(Grid("acme.one", (0, 0, 0)))).ask(count)) == count


class Typed(Implementation):
    """A domain in which True and 1 are two values."""

    op = "softmax"
    name = "acme.typed"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(swap=[True, 1, False, 0], a=[1, 2])

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise AssertionError("never run here")


@pytest.mark.parametrize("exhaust", [0, 32])
def test_true_and_one_are_two_candidates(exhaust: int) -> None:
    searcher = Searcher(a_plan(Typed()), exhaust=exhaust)
    asked = []
    for number in range(8):
        (candidate,) = searcher.ask(1)
        searcher.tell(candidate, 1.0 + number)
        asked.append(candidate.key)
    assert len(set(asked)) == 8
    assert searcher.size == 0
    assert searcher.ask(1) == []


def test_telling_true_leaves_one_untried() -> None:
    typed = Typed()
    searcher = Searcher(a_plan(typed))
    searcher.tell(Candidate(typed, {"swap": True, "a": 1}), 1.0)
    assert not searcher.untried(Candidate(typed, {"swap": True, "a": 1}))
    assert searcher.untried(Candidate(typed, {"swap": 1, "a": 1}))


def test_a_single_candidate_is_asked_once_and_settles_it() -> None:
    class Alone(Grid):
        def space(self, problem: Problem, device: Device) -> Space:
            return Space()

    searcher = Searcher(a_plan(Alone("acme.alone", (0, 0, 0))))
    assert not searcher.settled
    (candidate,) = searcher.ask(4)
    searcher.tell(candidate, 5.0)
    assert searcher.ask(4) == []
    assert searcher.settled


def test_where_everything_fails_everything_is_proposed_once() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)))
    searcher = Searcher(plan, exhaust=0)
    asked = []
    while batch := searcher.ask(8):
        for candidate in batch:
            searcher.tell(candidate, None)
            asked.append(candidate.key)
            assert searcher.settled == (searcher.size == 0)
    assert len(asked) == len(set(asked)) == plan.candidates


@pytest.mark.thorough
def test_what_another_problem_tells_while_it_is_in_flight_is_not_told_twice_to_the_study() -> None:
    grid = Grid("acme.one", (5, 2, 3))
    searcher = Searcher(a_plan(grid), exhaust=0, studies=Studies(sampler_named("tpe")))
    drive(searcher, 20)
    shared = Candidate(grid, {"a": 32, "b": 4, "c": 4})
    searcher.reserve(shared)
    searcher.tell(shared, 11.0)
    assert shared.key not in {candidate.key for candidate in searcher.ask(200)}


@pytest.mark.parametrize("name", ["registry", "tpe", "nsgaii", "random"])
def test_every_sampler_proposes_valid_candidates_once_and_the_defaults_first(name: str) -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)), Grid("acme.two", (1, 1, 6)))
    told = drive(Searcher(plan, exhaust=0, studies=Studies(sampler_named(name))), 40)
    assert len({candidate.key for _, candidate in told}) == len(told) >= 40
    assert {candidate.key for _, candidate in told[:2]} == {candidate.key for candidate in plan.defaults()}
    assert all(candidate.config in candidate.implementation.space(PROBLEM, plan.device) for _, candidate in told)


def test_the_study_holds_every_trial_as_it_ended() -> None:
    grid = Grid("acme.one", (5, 2, 3))
    searcher = Searcher(a_plan(grid), exhaust=0)
    timed, wrong, slow = searcher.ask(3)
    stored = Candidate(grid, {"a": 2, "b": 2, "c": 2})
    searcher.tell(timed, 12.0)
    searcher.tell(wrong, None, status="wrong_result", notes={"status": "wrong_result", "message": "off"})
    searcher.tell(slow, 90.0, censored=True)
    searcher.tell(stored, 14.0)
    searcher.reserve(Candidate(grid, {"a": 4, "b": 2, "c": 2}))
    first, second, third, fourth, fifth = searcher.study.trials
    assert [first.state, second.state, third.state] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]
    assert [first.value, third.value, fourth.value] == [12.0, 90.0, 14.0]
    assert second.user_attrs["message"] == "off"
    assert fourth.params["acme.one.a"] == 2
    assert (fifth.state, fifth.params["acme.one.a"]) == (TrialState.RUNNING, 4)
    assert searcher.study.best_trial.number == 0


def test_a_trial_that_is_told_again_counts_as_it_ended_last() -> None:
    grid = Grid("acme.one", (5, 2, 3))
    searcher = Searcher(a_plan(grid), exhaust=0)
    (candidate,) = searcher.ask(1)
    searcher.tell(candidate, None, status="timeout")
    left = searcher.size
    searcher.tell(candidate, 12.0)
    assert searcher.size == left
    assert [trial.state for trial in searcher.study.trials] == [TrialState.FAIL, TrialState.COMPLETE]


def test_it_settles_well_before_everything_is_tried_and_on_the_best() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)), Grid("acme.two", (1, 1, 6)))
    searcher = Searcher(plan, exhaust=0)
    told: list[tuple[float, Candidate]] = []
    while not searcher.settled:
        told += drive(searcher, 4)
    assert len(told) < plan.candidates / 3
    assert min(median for median, _ in told) == 10.0


def test_it_does_not_settle_while_starts_are_left() -> None:
    plan = a_plan(Grid("acme.one", (5, 2, 3)), Grid("acme.two", (1, 1, 6)))
    searcher = Searcher(plan)
    for candidate in searcher.ask(2):
        searcher.tell(candidate, 10.0)
    assert not searcher.settled


def test_an_implementation_that_is_far_slower_gets_few_trials() -> None:
    class Slow(Grid):
        def time(self, config: Config) -> float:
            return 4.0 * super().time(config)

    told = drive(Searcher(a_plan(Grid("acme.fast", (5, 2, 3)), Slow("acme.slow", (1, 1, 6))), exhaust=0), 60)
    assert sum(candidate.implementation.name == "acme.slow" for _, candidate in told) <= 15


def test_many_stored_trials_are_learnt_without_slowing_down_what_is_next() -> None:
    grid = Grid("acme.one", (5, 2, 3))
    plan = a_plan(grid)
    searcher = Searcher(plan, exhaust=0)
    for config in plan.choices[0].configs[:250]:
        searcher.tell(Candidate(grid, config), grid.time(config))
    (candidate,) = searcher.ask(1)
    assert candidate.config not in plan.choices[0].configs[:250]


def test_torch_is_not_needed_to_propose(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a proposal touched a tensor")

    monkeypatch.setattr(torch, "empty", refuse)
    assert Searcher(a_plan(Grid("acme.one", (0, 0, 0)))).ask(4)

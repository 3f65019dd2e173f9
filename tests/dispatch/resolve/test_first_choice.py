"""The short way to a choice finds what the long way finds, whatever sizes were asked before."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from registry import Device, Op, Problem
from registry.arguments.traits import OrdinaryTraits
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve.first_choice import FirstChoice
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.winners.winner_index import WinnerIndex

from ...tiers import one_of_each


def posed(dispatcher: Dispatcher, rows: int, cols: int = 16, dim: int = -1) -> Problem:
    op = dispatcher.bound("softmax").op
    x = torch.empty(rows, cols) if dim == -1 else torch.empty(cols, rows)
    found = op.posing_in_family(OrdinaryTraits, None)(op.specs((x, dim)))
    assert (type(found.traits) is OrdinaryTraits) is (dim == -1)
    assert found.dims == {"rows": rows, "cols": cols, "dtype": "float32"}
    return found


@pytest.mark.parametrize("seed", one_of_each(range(8)))
def test_every_size_has_the_winner_that_the_long_way_finds(
    dispatcher: Dispatcher, told: Any, publish: Any, seed: int
) -> None:
    draw = random.Random(seed)
    dispatcher.register(told("a.tuned", unsupported=lambda problem: ["odd"] if problem.rows % 97 == 0 else []))
    for rows in draw.sample(range(1, 600), 6):
        name = draw.choice(["a.tuned", "a.gone"])
        publish({"rows": rows, "cols": 16, "dtype": "float32"}, name, {"block": draw.choice([1, 2, 4])})
    plans, device = dispatcher.bound("softmax").plans, Device.of("cpu")
    first_choice = FirstChoice(plans.situation(posed(dispatcher, 1), device))
    for rows in draw.sample(range(1, 600), 300):
        problem = posed(dispatcher, rows)
        misses: list[str] = []
        first = next(choices(plans.situation(problem, device), None, misses))
        found = first_choice.choice(problem)
        if found is None:
            assert any("odd" in miss for miss in misses) or first.candidate is None
            continue
        assert found.choice_of(problem) == first
        assert not set(found.misses) - set(misses)


@pytest.mark.parametrize("reads_rows", [False, True])
def test_who_can_run_is_found_for_the_dimensions_that_decide_it(
    dispatcher: Dispatcher, told: Any, publish: Any, reads_rows: bool
) -> None:
    asked: list[tuple[int, int]] = []

    def unsupported(problem: Problem) -> list[str]:
        asked.append((problem.dims["rows"] if reads_rows else 0, problem.cols))
        return ["wide"] if problem.cols == 17 or (reads_rows and problem.rows % 5 == 0) else []

    dispatcher.register(told("a.tuned", unsupported=unsupported, blocks=lambda problem: [1, 2][: problem.rows]))
    for cols in (16, 17, 40):
        publish({"rows": 8, "cols": cols, "dtype": "float32"}, "a.tuned", {"block": 2})
    plans, device = dispatcher.bound("softmax").plans, Device.of("cpu")
    first_choice = FirstChoice(plans.situation(posed(dispatcher, 1), device))
    sizes = [(rows, cols) for rows in range(9, 30) for cols in (16, 17, 40, 40, 16)]
    for rows, cols in sizes:
        found = first_choice.choice(posed(dispatcher, rows, cols))
        assert (found is None) == (cols == 17 or (reads_rows and rows % 5 == 0)), (rows, cols)
    assert reads_rows or len(asked) <= 9, "once for each number of columns, and again where winners are compared"


def test_a_view_of_another_layout_is_asked_about_at_every_size(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    def refuses(problem: Problem) -> list[str]:
        return [] if problem.traits["contiguous"] else ["not contiguous"]

    dispatcher.register(told("a.tuned", unsupported=refuses))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.tuned", {"block": 2})
    first_choice = FirstChoice(dispatcher.bound("softmax").plans.situation(posed(dispatcher, 1), Device.of("cpu")))
    for rows in range(9, 40):
        dim = 0 if rows % 3 == 0 else -1
        found = first_choice.choice(posed(dispatcher, rows, dim=dim))
        assert (found is None) == (dim == 0), rows


def test_without_winners_the_default_is_asked_once(dispatcher: Dispatcher, told: Any) -> None:
    asked: list[int] = []

    def unsupported(problem: Problem) -> list[str]:
        asked.append(problem.cols)
        return []

    dispatcher.register(told("a.any", unsupported=unsupported))
    first_choice = FirstChoice(dispatcher.bound("softmax").plans.situation(posed(dispatcher, 1), Device.of("cpu")))
    problems = [posed(dispatcher, rows) for rows in range(1, 9)]
    found = [one.choice_of(problem) for problem in problems if (one := first_choice.choice(problem))]
    assert {one.candidate.implementation.name for one in found if one.candidate} == {"a.any"}
    assert asked == [16], "tensors that are not aligned are no other question to who does not look"


@pytest.mark.thorough
def test_winners_of_which_none_holds_are_told_at_every_size(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.any"))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.gone", {"block": 1})
    first_choice = FirstChoice(dispatcher.bound("softmax").plans.situation(posed(dispatcher, 1), Device.of("cpu")))
    for rows in (3, 8, 9):
        problem = posed(dispatcher, rows)
        found = first_choice.choice(problem)
        assert found is not None
        assert found.choice_of(problem).step == "default"
        assert found.misses == ("winner of rows=8: a.gone is not installed here",)


@pytest.mark.parametrize("stale", [False, True])
def test_sizes_that_grow_one_by_one_look_for_a_near_winner_a_few_times(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    if stale:
        publish({"rows": 16, "cols": 16, "dtype": "float32"}, "a.gone", {"block": 1})
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.tuned", {"block": 1})
    looked: list[int] = []
    nearest = WinnerIndex.nearest

    def counted(self: WinnerIndex, op: Op, problem: Problem, *spent: Any, **own: Any) -> Any:
        looked.append(problem.rows)
        return nearest(self, op, problem, *spent, **own)

    monkeypatch.setattr(WinnerIndex, "nearest", counted)
    first_choice = FirstChoice(dispatcher.bound("softmax").plans.situation(posed(dispatcher, 1), Device.of("cpu")))
    found = [first_choice.choice(posed(dispatcher, rows)) for rows in range(100, 400)]
    assert looked == [100, 200, 201, 402]
    misses = ("winner of rows=16: a.gone is not installed here",) if stale else ()
    assert all(one is not None and one.misses == misses for one in found)


def test_a_winner_that_does_not_hold_is_told_as_that_of_the_problem_itself(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.tuned", {"block": 1})
    publish({"rows": 100, "cols": 16, "dtype": "float32"}, "a.gone", {"block": 1})
    first_choice = FirstChoice(dispatcher.bound("softmax").plans.situation(posed(dispatcher, 1), Device.of("cpu")))
    problems = {rows: posed(dispatcher, rows) for rows in (90, 110, 99, 100, 101, 8)}
    found = {rows: first_choice.choice(problem) for rows, problem in problems.items()}
    near, own = "winner of rows=100: a.gone is not installed here", "winner of exactly this problem"
    for rows in (90, 110, 99, 101):
        one = found[rows]
        assert one is not None
        assert (one.misses, one.choice_of(problems[rows]).octaves > 3) == ((near,), True)
    at, tuned = found[100], found[8]
    assert at is not None
    assert tuned is not None
    step = tuned.choice_of(problems[8]).step
    assert (at.misses[0].startswith(own), step, tuned.misses) == (True, "exact", ())

"""A winner answers for other sizes of a static dimension between those at which it was verified, by verified code."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry import Device, octave
from registry.artifact import Variant
from registry.contracts import SOFTMAX
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.miss import Miss
from registry.dispatch.resolve.first_choice import FirstChoice
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.winners import OpWinners
from registry.dispatch.resolve.winners.static_groups import StaticGroups
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Transfer

from ...tiers import one_of_each
from ..conftest import Told

EVERYWHERE = Transfer(513, 1024, ("",))
"""Of an implementation that compiles nothing."""


def dims(rows: int, cols: int) -> dict[str, Any]:
    return {"rows": rows, "cols": cols, "dtype": "float32"}


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The columns of calls that were resolved from scratch."""
    seen: list[int] = []
    whole = Miss._first_that_runs

    def counting(self: Miss, asked: Any, *given: Any) -> Any:
        seen.append(asked.tensors[0].shape[-1])
        return whole(self, asked, *given)

    monkeypatch.setattr(Miss, "_first_that_runs", counting)
    return seen


def test_a_cache_that_grows_is_answered_by_one_winner(dispatcher: Dispatcher, publish: Any, missed: list[int]) -> None:
    winner = Told("a.tuned", any_size=True)
    dispatcher.register(winner)
    dispatcher.register(Told("a.preferred", 9.0))
    publish(dims(8, 1024), "a.tuned", {"block": 4}, transfers={"cols": EVERYWHERE})
    for cols in range(1000, 1025):
        x = torch.randn(8, cols)
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    assert winner.runs == [{"block": 4}] * 25
    assert missed == [1000]


def test_explain_tells_the_size_and_where_it_was_verified(dispatcher: Dispatcher, publish: Any) -> None:
    dispatcher.register(Told("a.tuned"))
    dispatcher.register(Told("a.other"))
    publish(dims(8, 1024), "a.tuned", {"block": 4}, transfers={"cols": EVERYWHERE}, baselines={"a.other": 1.5})
    explained = dispatcher.explain("softmax", torch.randn(8, 1000))
    assert (explained.step, dict(explained.config)) == ("nearest", {"block": 4})
    assert explained.reason == "the winner of rows=8, cols=1024 (verified at 513 and 1024)"
    assert 0.034 < explained.octaves < 0.035
    assert "1.50 times as long in the finals of rows=8, cols=1024" in str(explained)
    dispatcher.configure(mode="strict")
    dispatcher.call("softmax", torch.randn(8, 1000))
    dispatcher.configure(mode="verified")
    assert dispatcher.explain("softmax", torch.randn(8, 1000)).implementation == "a.tuned"


def test_a_winner_that_was_wrong_at_another_size_is_no_default_there_either(
    dispatcher: Dispatcher, publish: Any
) -> None:
    dispatcher.register(Told("a.tuned"))
    dispatcher.register(Told("a.preferred", 9.0))
    publish(dims(8, 1024), "a.tuned", {"block": 4}, transfers={"cols": Transfer(1024, 1024)})
    for cols in (1000, 600, 1200):
        assert dispatcher.explain("softmax", torch.randn(8, cols)).implementation == "a.preferred"
    assert dispatcher.explain("softmax", torch.randn(9, 1024)).implementation == "a.tuned"


@pytest.mark.parametrize("cols", [512, 1025])
@pytest.mark.few(1)
def test_beyond_the_verified_sizes_it_is_no_winner(dispatcher: Dispatcher, publish: Any, cols: int) -> None:
    dispatcher.register(Told("a.tuned"))
    publish(dims(8, 1024), "a.tuned", {"block": 4}, transfers={"cols": EVERYWHERE})
    assert dispatcher.explain("softmax", torch.randn(8, cols)).step == "default"
    assert dispatcher.explain("softmax", torch.randn(9, 1024)).reason == "the winner of rows=8"


def test_a_winner_that_was_not_verified_elsewhere_is_one_of_its_size_alone(
    dispatcher: Dispatcher, publish: Any
) -> None:
    dispatcher.register(Told("a.tuned"))
    publish(dims(8, 1024), "a.tuned", {"block": 4})
    assert dispatcher.explain("softmax", torch.randn(8, 1023)).step == "default"


def test_what_cannot_run_there_gives_way_and_says_why(dispatcher: Dispatcher, publish: Any) -> None:
    dispatcher.register(Told("a.even", unsupported=lambda problem: ["it is odd"] if problem.cols % 2 else []))
    dispatcher.register(Told("a.narrow", blocks=lambda problem: [4] if problem.cols == 1022 else [1]))
    publish(dims(8, 1024), "a.even", {"block": 4}, transfers={"cols": EVERYWHERE})
    publish(dims(8, 1022), "a.narrow", {"block": 4}, transfers={"cols": EVERYWHERE})
    assert dispatcher.explain("softmax", torch.randn(8, 1000)).implementation == "a.even"
    explained = dispatcher.explain("softmax", torch.randn(8, 1001))
    assert explained.step == "default"
    assert any("cols=1024 (verified at 513 and 1024): a.even: it is odd" in miss for miss in explained.misses)
    assert any("cols=1022 (verified at 513 and 1024): a.narrow" in miss for miss in explained.misses)


class Compiling(Told):
    """Compiles code of its own for columns that are divisible by 8."""

    def variants(self, problem: Any, config: Any, device: Any, signature: Any) -> tuple[Variant, ...]:
        return (Variant("none", "kernel", {"wide": problem.cols % 8 == 0}),)


def test_code_that_was_not_verified_does_not_run(
    dispatcher: Dispatcher, publish: Any, missed: list[int], draft_code: Callable[[Told, int], str]
) -> None:
    winner = Compiling("a.tuned")
    dispatcher.register(winner)
    fallback = Told("a.preferred", 9.0)
    dispatcher.register(fallback)
    verified = Transfer(513, 1024, (draft_code(winner, 1024),))
    publish(dims(8, 1024), "a.tuned", {"block": 4}, transfers={"cols": verified})
    for cols, ran in ((1000, winner), (1001, fallback), (1016, winner), (1017, fallback)):
        x = torch.randn(8, cols)
        before = len(ran.runs)
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
        assert len(ran.runs) == before + 1, cols
    explained = dispatcher.explain("softmax", torch.randn(8, 1001))
    assert explained.implementation == "a.preferred"
    assert any("a.tuned(block=4) needs other code here than was verified" in miss for miss in explained.misses)


@pytest.fixture
def draft_code() -> Callable[[Told, int], str]:
    from registry.arguments.inputs import arguments_of
    from registry.dispatch.plans.plan import Candidate, Draft

    def code(implementation: Told, cols: int) -> str:
        problem = SOFTMAX.problem_of(dims(8, cols))
        candidate = Candidate(implementation, {"block": 4})
        return Draft.of(SOFTMAX, candidate, problem, arguments_of(SOFTMAX, problem), Device.of("cpu")).code

    return code


def test_what_an_op_says_today_bounds_what_was_verified_once() -> None:
    winners = [dims(8, 1024), dims(8, 600), dims(8, 3000)]
    told: list[dict[str, Transfer]] = [{"cols": EVERYWHERE}, {}, {"cols": Transfer(2049, 4096)}]
    environment = Environment(Device.of("cpu").hardware(), {})
    shipped = tuple(
        Decision(
            problem=ProblemKey("softmax", 1, each, ("cols", "dtype")),
            environment=environment,
            protocol=Protocol("cold"),
            candidate=CandidateKey("a.tuned", "1", {}),
            median_us=1.0,
            transfers=transfers,
        )
        for each, transfers in zip(winners, told, strict=True)
    )

    def reached(op: Any, cols: int) -> list[int]:
        group = StaticGroups(op, ("cols", "dtype"), OpWinners(shipped=shipped).placed).group(dims(8, cols))
        return [] if group is None else group.places

    assert reached(SOFTMAX, 600) == [0, 1]
    assert reached(SOFTMAX, 513) == [0]
    assert reached(SOFTMAX, 2500) == [2]
    halves = replace(SOFTMAX, transfers={"cols": lambda cols: (1, 768) if cols <= 768 else (769, 1 << 20)})
    assert reached(halves, 769) == [0]
    assert reached(halves, 768) == []

    def broken(cols: int) -> tuple[int, int]:
        raise ValueError(cols)

    assert reached(replace(SOFTMAX, transfers={"cols": broken}), 700) == []
    assert octave(1000) == (513, 1024)


@pytest.mark.parametrize("seed", one_of_each(range(8)))
def test_whatever_grows_the_first_of_the_choices_is_found(dispatcher: Dispatcher, publish: Any, seed: int) -> None:
    generator = random.Random(seed)
    for name in ("a", "b", "c"):
        dispatcher.register(Told(f"a.{name}"))
    for cols in generator.sample(range(200, 1100), 12):
        low, high = octave(cols)
        reach = Transfer(generator.randint(low, cols), generator.randint(cols, high), ("",))
        transfers = generator.choice([{}, {"cols": reach}, {"cols": Transfer(low, high, ("",))}])
        config = {"block": generator.choice([1, 2, 4])}
        publish(dims(generator.choice([1, 8, 16]), cols), f"a.{generator.choice('abc')}", config, transfers=transfers)
    plans = dispatcher.bound("softmax").plans
    some = plans.situation(SOFTMAX.problem_of(dims(8, 16)), Device.of("cpu"))
    first_choice = FirstChoice(some)
    start = generator.randint(200, 600)
    for step in range(400):
        problem = SOFTMAX.problem_of(dims(generator.choice([1, 4, 8, 11, 16, 40]), start + step))
        expected = next(choices(some.of(problem), None, []))
        found = first_choice.choice(problem)
        assert found is not None
        choice = found.choice_of(problem)
        assert (choice.step, choice.candidate) == (expected.step, expected.candidate)
        assert choice.octaves == pytest.approx(expected.octaves)

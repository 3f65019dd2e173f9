"""Static dimensions that nobody tuned take the winners of the most similar ones, as a default that says so."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from registry import Device, NotTunedError, Op, Problem
from registry.arguments.traits import OrdinaryTraits
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve.expectations import expected_elsewhere
from registry.dispatch.resolve.first_choice import FirstChoice
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.winners.neighbours import Neighbours
from registry.dispatch.resolve.winners.similar_statics import FARTHEST, Similar, SimilarStatics
from registry.dispatch.resolve.winners.winner_index import WinnerIndex

from ....tiers import one_of_each


def cols(found: SimilarStatics, dims: dict[str, Any]) -> list[Any]:
    return [similar.static["cols"] for similar in found.near(dims)]


def test_the_nearest_numbers_come_first_where_texts_are_equal() -> None:
    keys = [(16, "a"), (64, "a"), (24, "b"), (1000, "a"), (20, "a"), ("16", "a"), (True, "a"), (0, "a"), (10**400, "a")]
    found = SimilarStatics(("cols", "dtype"), keys)
    assert cols(found, {"cols": 32, "dtype": "a"}) == [20, 16, 64]
    assert cols(found, {"cols": 32, "dtype": "c"}) == []
    assert cols(found, {"cols": "wide", "dtype": "a"}) == []
    assert cols(found, {"cols": 24, "dtype": "b"}) == []


def test_what_is_too_far_says_nothing() -> None:
    found = SimilarStatics(("cols",), [16])
    assert found.near({"cols": int(16 * 2**FARTHEST)}) == [Similar({"cols": 16}, FARTHEST)]
    assert found.near({"cols": int(16 * 2**FARTHEST) + 16}) == []


def test_a_size_that_as_many_powers_of_two_divide_is_nearer() -> None:
    """A row of 50257 elements is loaded one by one, as one of 30001 is, and not as one of 50272."""
    found = SimilarStatics(("cols",), [50272, 30001, 60008])
    assert cols(found, {"cols": 50257}) == [30001, 60008, 50272]
    assert cols(found, {"cols": 50304}) == [50272, 60008, 30001]


def test_the_other_half_precision_is_near_and_no_other_dtype_is(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 16, "dtype": "bfloat16"}, "a.tuned", {"block": 4})
    explained = dispatcher.explain("softmax", torch.randn(8, 16).half())
    assert "for dtype=bfloat16: the winner of rows=8" in explained.reason
    assert "preferred by heuristic" in dispatcher.explain("softmax", torch.randn(8, 16)).reason


def test_the_nearest_in_all_dimensions_answers(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.tuned"))
    publish({"rows": 512, "cols": 20, "dtype": "float32"}, "a.tuned", {"block": 1})
    publish({"rows": 8, "cols": 64, "dtype": "float32"}, "a.tuned", {"block": 2})
    found = {rows: dispatcher.explain("softmax", torch.randn(rows, 24)).config for rows in (8, 16, 256, 300)}
    assert found == {8: {"block": 2}, 16: {"block": 2}, 256: {"block": 1}, 300: {"block": 1}}


def test_a_default_is_what_won_nearby_and_says_where(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.preferred", 9.0))
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.tuned", {"block": 4})
    publish({"rows": 8, "cols": 500, "dtype": "float32"}, "a.preferred", {"block": 1})
    x = torch.randn(8, 24)
    explained = dispatcher.explain("softmax", x)
    assert (explained.step, explained.implementation, dict(explained.config)) == ("default", "a.tuned", {"block": 4})
    assert "nothing tuned is near; for cols=16: the winner of rows=8" in explained.reason
    assert explained.median_us is None
    assert explained.there_us is None
    (other,) = [one for one in explained.others if one.name == "a.preferred"]
    assert "most similar problems" in other.reasons[0]
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    assert dispatcher.explain("softmax", torch.randn(8, 16 * 200)).implementation == "a.preferred"
    assert dispatcher.explain("softmax", torch.randn(8, 24).double()).reason.startswith("nothing tuned is near; pref")


def test_who_cannot_run_here_gives_way_to_the_next(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.narrow", unsupported=lambda problem: ["too wide"] if problem.cols > 16 else []))
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.narrow", {"block": 1})
    publish({"rows": 99, "cols": 16, "dtype": "float32"}, "a.tuned", {"block": 2})
    publish({"rows": 8, "cols": 100, "dtype": "float32"}, "a.tuned", {"block": 4})
    explained = dispatcher.explain("softmax", torch.randn(8, 24))
    assert (explained.step, explained.implementation, dict(explained.config)) == ("default", "a.tuned", {"block": 4})


def test_a_default_of_similar_problems_is_not_tuned(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 16, "dtype": "float32"}, "a.tuned", {"block": 1})
    dispatcher.configure(mode="strict")
    with pytest.raises(NotTunedError):
        dispatcher.call("softmax", torch.randn(8, 24))
    dispatcher.configure(mode="verified")
    assert dispatcher.explain("softmax", torch.randn(8, 24)).implementation == "reference"


@pytest.mark.parametrize("seed", one_of_each(range(6)))
def test_the_short_way_finds_what_the_long_way_finds(
    dispatcher: Dispatcher, told: Any, publish: Any, seed: int
) -> None:
    draw = random.Random(seed)
    dispatcher.register(told("a.tuned", unsupported=lambda problem: ["odd"] if problem.rows % 97 == 0 else []))
    dispatcher.register(told("a.other", 3.0))
    dispatcher.register(told("a.made", transfers=False))
    for rows in draw.sample(range(1, 300), 8):
        name = draw.choice(["a.tuned", "a.other", "a.gone", "a.made"])
        dims = {"rows": rows, "cols": draw.choice([12, 24, 500]), "dtype": "float32"}
        publish(dims, name, {"block": draw.choice([1, 2, 4])}, baselines={"a.tuned": 1.5, "a.other": 1.2})
    plans, op = dispatcher.bound("softmax").plans, dispatcher.bound("softmax").op

    def posed(rows: int) -> Any:
        return op.posing_in_family(OrdinaryTraits, None)(op.specs((torch.empty(rows, 16), -1)))

    first_choice = FirstChoice(plans.situation(posed(1), Device.of("cpu")))
    for rows in draw.sample(range(1, 300), 200):
        first = next(choices(plans.situation(posed(rows), Device.of("cpu")), None, []))
        problem = posed(rows)
        found = first_choice.choice(problem)
        assert found is None or found.choice_of(problem) == first
        assert found is not None or rows % 97 == 0


def test_sizes_that_grow_one_by_one_look_for_similar_winners_a_few_times(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 24, "dtype": "float32"}, "a.tuned", {"block": 1})
    plans, op = dispatcher.bound("softmax").plans, dispatcher.bound("softmax").op
    looked: list[int] = []
    similar = WinnerIndex.similar

    def counted(self: WinnerIndex, op: Op, problem: Problem) -> Any:
        looked.append(problem.rows)
        return similar(self, op, problem)

    monkeypatch.setattr(WinnerIndex, "similar", counted)
    problems = [
        op.posing_in_family(OrdinaryTraits, None)(op.specs((torch.empty(rows, 16), -1))) for rows in range(100, 400)
    ]
    first_choice = FirstChoice(plans.situation(problems[0], Device.of("cpu")))
    found = [(problem, first_choice.choice(problem)) for problem in problems]
    assert all(
        one is not None and dict(one.choice_of(problem).candidate.config) == {"block": 1} for problem, one in found
    )
    # at the first size, at the second, and beyond that
    assert len(looked) <= 5


def test_static_dimensions_of_one_size_look_for_similar_winners_once(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({"rows": 8, "cols": 24, "dtype": "float32"}, "a.tuned", {"block": 1})
    plans, op = dispatcher.bound("softmax").plans, dispatcher.bound("softmax").op
    looked: list[int] = []
    similar = WinnerIndex.similar

    def counted(self: WinnerIndex, op: Op, problem: Problem) -> Any:
        looked.append(problem.cols)
        return similar(self, op, problem)

    monkeypatch.setattr(WinnerIndex, "similar", counted)
    problems = [
        op.posing_in_family(OrdinaryTraits, None)(op.specs((torch.empty(8, cols), -1))) for cols in range(25, 40)
    ]
    first_choice = FirstChoice(plans.situation(problems[0], Device.of("cpu")))
    found = [(problem, first_choice.choice(problem)) for problem in problems]
    assert all(
        one is not None and dict(one.choice_of(problem).candidate.config) == {"block": 1} for problem, one in found
    )
    assert looked == list(range(25, 40))


def test_nearer_static_dimensions_answer_without_a_look_at_those_beyond(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.tuned"))
    for cols, block in ((24, 1), (48, 2), (96, 1)):
        publish({"rows": 8, "cols": cols, "dtype": "float32"}, "a.tuned", {"block": block})
    bound = dispatcher.bound("softmax")
    posed = bound.op.posing_in_family(OrdinaryTraits, None)(bound.op.specs((torch.empty(8, 25), -1)))
    situation = bound.plans.situation(posed, Device.of("cpu"))
    asked: list[int] = []
    nearest = WinnerIndex.nearest

    def counted(self: WinnerIndex, op: Op, problem: Problem, *rest: Any, **options: Any) -> Any:
        asked.append(problem.cols)
        return nearest(self, op, problem, *rest, **options)

    monkeypatch.setattr(WinnerIndex, "nearest", counted)
    offered = expected_elsewhere(situation)
    one, static = next(offered)
    assert (static["cols"], dict(one.candidate.config), set(asked)) == (24, {"block": 1}, {24})
    assert [static["cols"] for _, static in offered] == [48, 96]


def test_a_source_that_holds_nowhere_is_looked_at_once(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.tuned"))
    for cols in (24, 48, 96, 192):
        publish({"rows": 8, "cols": cols, "dtype": "float32"}, "a.tuned", {"block": 1}, fingerprint="of another text")
    bound = dispatcher.bound("softmax")
    posed = bound.op.posing_in_family(OrdinaryTraits, None)(bound.op.specs((torch.empty(8, 40), -1)))
    measured: list[tuple[float, ...]] = []
    octaves = Neighbours.octaves

    def counted(self: Neighbours, sizes: tuple[float, ...]) -> Any:
        measured.append(sizes)
        return octaves(self, sizes)

    monkeypatch.setattr(Neighbours, "octaves", counted)
    assert not list(expected_elsewhere(bound.plans.situation(posed, Device.of("cpu"))))
    assert len(measured) == 1

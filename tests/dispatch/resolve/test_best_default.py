"""The best default of another size, found by what sizes before it told, is that which resolution begins with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import Config, Device, Implementation, Problem, Space
from registry.arguments.traits import OrdinaryTraits
from registry.artifact import Built
from registry.contracts.softmax import SOFTMAX
from registry.dispatch.resolve.best_default import BestDefault
from registry.dispatch.resolve.learnt import Leaf, LearntDefault, Split, WinningConfig
from registry.dispatch.resolve.resolution import default_choices
from registry.dispatch.resolve.situation import Situation
from registry.dispatch.resolve.winners import OpWinners
from registry.implementation import Run

NAMES = ("a.one", "a.two", "a.three")
SIZES = st.integers(1, 600)
BLOCKS = (1, 2, 4)


class Answering(Implementation):
    """Answers by rows and columns in a way that a number chooses."""

    op, device_types = "softmax", frozenset({"cpu"})

    def __init__(self, name: str, way: int) -> None:
        self.name, self.way = name, way

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if self.way & 1 and problem.rows % 7 == 0:
            yield "odd rows"
        if self.way & 2 and problem.cols == 16 and not problem.traits["aligned"]:
            yield "not aligned"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=[1, 2] if self.way & 4 and problem.rows > 300 else BLOCKS)

    def default(self, problem: Problem, device: Device) -> Config:
        return {"block": 2 if self.way & 8 and problem.rows < 100 else 1}

    def preference(self, problem: Problem, device: Device) -> float:
        return float(problem.rows % 3 if self.way & 16 else self.way % 5)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda *_: None


LEAVES = st.builds(
    lambda names, problems: Leaf(tuple((name, 1.0 + place) for place, name in enumerate(names)), problems),
    st.permutations(NAMES).flatmap(lambda names: st.integers(0, 3).map(lambda count: names[:count])),
    st.integers(1, 9),
)
TREES = st.recursive(
    LEAVES,
    lambda nodes: st.one_of(
        st.builds(Split, st.just("rows"), SIZES, nodes, nodes),
        st.builds(Split, st.just("cols"), st.sampled_from([16, 32]), nodes, nodes),
        st.builds(Split, st.just("dtype"), st.sampled_from(["float32", "bfloat16"]), nodes, nodes),
    ),
    max_leaves=4,
)
WON = st.builds(
    lambda rows, cols, block: WinningConfig({"rows": rows, "cols": cols, "dtype": "float32"}, {"block": block}),
    SIZES, st.sampled_from([8, 16, 64]), st.sampled_from(BLOCKS),
)  # fmt: skip
RULES = st.one_of(
    st.none(),
    st.builds(
        LearntDefault, st.just(1), st.just(9), TREES,
        st.dictionaries(st.sampled_from(NAMES), st.lists(WON, min_size=1, max_size=5).map(tuple)),
    ),
)  # fmt: skip


def posed(rows: int, cols: int) -> Problem:
    found = SOFTMAX.posing_in_family(OrdinaryTraits, None)(SOFTMAX.specs((torch.empty(rows, cols), -1)))
    assert type(found.traits) is OrdinaryTraits
    return found


@settings(max_examples=150, deadline=None)
@given(
    rule=RULES,
    ways=st.lists(st.integers(0, 31), min_size=1, max_size=3),
    sizes=st.lists(st.tuples(SIZES, st.sampled_from([16, 32])), min_size=1, max_size=40),
)
@pytest.mark.thorough
def test_every_size_has_the_default_that_resolution_finds(
    rule: LearntDefault | None, ways: list[int], sizes: list[tuple[int, int]]
) -> None:
    implementations = tuple(Answering(name, way) for name, way in zip(NAMES, ways, strict=False))
    situation = Situation(SOFTMAX, posed(1, 16), Device.of("cpu"), implementations, OpWinners(learnt=rule))
    best = BestDefault(situation)
    for size in sizes:
        problem = posed(*size)
        misses: list[Any] = []
        first = next(default_choices(situation.of(problem), misses), None)
        found = best.of(problem)
        choice = found and found.choice_of(problem)
        assert choice == first
        if found is not None and choice is not None and choice.candidate is not None:
            runs = choice.candidate.implementation
            assert found.narrow is bool([*runs.unsupported(problem.misaligned(), situation.device)])


def test_only_whoever_the_rule_ranks_first_is_asked_at_each_size() -> None:
    asked: list[str] = []

    class Counting(Answering):
        def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
            asked.append(self.name)
            return super().unsupported(problem, device)

        def preference(self, problem: Problem, device: Device) -> float:
            asked.append(self.name)
            return super().preference(problem, device)

    implementations = tuple(Counting(name, 17) for name in NAMES)
    rule = LearntDefault(1, 9, Leaf((("a.two", 1.0),), 9))
    situation = Situation(SOFTMAX, posed(1, 16), Device.of("cpu"), implementations, OpWinners(learnt=rule))
    best = BestDefault(situation)
    found = [best.of(posed(rows, 16)) for rows in range(1, 6)]
    assert {one.candidate.implementation.name for one in found if one is not None} == set(asked) == {"a.two"}
    assert best.of(posed(7, 16)) is None  # nobody runs it, and all were asked
    assert set(asked) == set(NAMES)


def test_an_implementation_is_asked_once_whether_it_can_run_if_its_configuration_alone_reads_sizes() -> None:
    asked: list[str] = []

    class Counting(Answering):
        def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
            asked.append("unsupported")
            return super().unsupported(problem, device)

        def preference(self, problem: Problem, device: Device) -> float:
            asked.append("preference")
            return super().preference(problem, device)

        def default(self, problem: Problem, device: Device) -> Config:
            asked.append("default")
            return super().default(problem, device)

    situation = Situation(SOFTMAX, posed(1, 16), Device.of("cpu"), (Counting("a.one", 8),), OpWinners())
    best = BestDefault(situation)
    for rows in (99, 100, 101, 98):
        found = best.of(posed(rows, 16))
        assert found is not None
        assert found.candidate.config == {"block": 2 if rows < 100 else 1}
    assert [asked.count(question) for question in ("unsupported", "preference", "default")] == [1, 1, 4]

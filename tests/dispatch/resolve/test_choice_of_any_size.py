"""Whatever a database holds and whatever implementations look at, a new size is answered as resolution answers it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from registry import Config, Device, Implementation, Problem, Space, octave
from registry.arguments.traits import OrdinaryTraits
from registry.artifact import Built
from registry.contracts.softmax import SOFTMAX
from registry.dispatch.resolve.first_choice import FirstChoice
from registry.dispatch.resolve.learnt import Leaf, LearntDefault, Split
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.situation import Situation
from registry.dispatch.resolve.winners import OpWinners
from registry.implementation import Run
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Transfer

from ...tiers import THOROUGH

CPU = Device.of("cpu")
ENVIRONMENT = Environment(CPU.hardware(), CPU.software())
NAMES = ("a.one", "a.two", "a.three")
ROWS = st.integers(1, 300)
COLS = st.sampled_from([16, 17, 24, 32, 33, 64])


class Choosy(Implementation):
    """Reads rows, columns and alignment in a way that a number chooses."""

    op, device_types = "softmax", frozenset({"cpu"})

    def __init__(self, name: str, way: int) -> None:
        self.name, self.way = name, way
        self.transfers = not way & 32

    def fingerprint(self) -> str:
        return "2" if self.way & 64 else "1"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if self.way & 1 and problem.rows % 5 == 0:
            yield "odd rows"
        if self.way & 2 and problem.cols == 33:
            yield "odd columns"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=[1, 2] if self.way & 4 and problem.rows > 100 else [1, 2, 4])

    def default(self, problem: Problem, device: Device) -> Config:
        return {"block": 2 if self.way & 8 and problem.rows < 50 else 1}

    def preference(self, problem: Problem, device: Device) -> float:
        if self.way & 1 and problem.rows % 5 == 0:
            raise ValueError("rows that it cannot run have no preference")
        return float(problem.rows % 3 if self.way & 16 else self.way % 5)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda *_: None


def decided(rows: int, cols: int, name: str, block: int, reach: int, others: Sequence[tuple[str, float]]) -> Decision:
    low, high = octave(cols)
    transfers = [{}, {"cols": Transfer(low, high, ("",))}, {"cols": Transfer(cols, cols)}][reach]
    return Decision(
        problem=ProblemKey("softmax", 1, {"rows": rows, "cols": cols, "dtype": "float32"}, ("cols", "dtype")),
        environment=ENVIRONMENT,
        protocol=Protocol("cold"),
        candidate=CandidateKey(name, "1", {"block": block}),
        median_us=2.0,
        floor_us=1.0,
        verdict="new",
        baselines={other: over for other, over in others if other != name},
        transfers=transfers,
    )


OTHERS = st.lists(st.tuples(st.sampled_from(NAMES), st.floats(1.0, 3.0)), max_size=2)
WINNERS = st.lists(
    st.builds(decided, ROWS, COLS, st.sampled_from([*NAMES, "a.gone"]), st.sampled_from([1, 2, 4]),
              st.integers(0, 2), OTHERS),
    max_size=8,
)  # fmt: skip
LEAVES = st.builds(
    lambda names, count: Leaf(tuple((name, 1.0) for name in names[:count]), 3),
    st.permutations(NAMES),
    st.integers(0, 3),
)
RULES = st.one_of(
    st.none(),
    st.builds(
        lambda bound, low, high: LearntDefault(1, 3, Split("rows", bound, low, high)), ROWS, LEAVES, LEAVES
    ),
)  # fmt: skip
SIZES = st.lists(st.tuples(ROWS, COLS), min_size=1, max_size=30)
WAYS = st.lists(st.integers(0, 127), min_size=1, max_size=3)


def posed(rows: int, cols: int) -> Problem:
    return SOFTMAX.posing_in_family(OrdinaryTraits, None)(SOFTMAX.specs((torch.empty(rows, cols, device="meta"), -1)))


def agrees(winners: list[Decision], rule: LearntDefault | None, ways: list[int], sizes: list[tuple[int, int]]) -> None:
    implementations = tuple(Choosy(name, way) for name, way in zip(NAMES, ways, strict=False))
    known = OpWinners(shipped=tuple(winners), learnt=rule)
    situation = Situation(SOFTMAX, posed(1, 16), CPU, implementations, known)
    first_choice = FirstChoice(situation)
    for size in sizes:
        problem, misses = posed(*size), list[str]()
        first = next(choices(situation.of(problem), None, misses))
        try:
            found: Any = first_choice.choice(problem)
        except ValueError:  # then the miss asks all implementations
            continue
        if found is None:
            # left to the miss: the candidate of the best winner cannot run this size
            assert any(each.way & 7 for each in implementations)
            continue
        assert found.candidate == first.candidate
        assert found.decision is first.decision
        assert found.choice_of(problem) == first
        # a winner of exactly this size may be told by its size, as at other sizes; of a source that has changed
        # some winner is told, and whether the source could run its problem
        if not any(each.way & 64 for each in implementations):
            assert not _reasons(found.misses) - _reasons(misses)
        runs = found.candidate.implementation
        assert found.narrow is bool([*runs.unsupported(problem.misaligned(), CPU)])


def _reasons(misses: Iterable[str]) -> set[str]:
    return {miss.partition(": ")[2] for miss in misses}


# what the tuner found not to transfer stands before farther winners of its candidate, at some rows and not at others
@example(
    winners=[
        decided(1, 16, "a.three", 2, 2, []),
        decided(2, 16, "a.three", 2, 0, []),
        decided(5, 17, "a.three", 2, 0, []),
    ],
    rule=None,
    ways=[32, 0, 0],
    sizes=[(1, 33), (3, 33), (2, 33)],
)
@example(
    winners=[decided(1, 17, "a.one", 4, 0, []), decided(2, 17, "a.one", 4, 2, [])],
    rule=None,
    ways=[0],
    sizes=[(2, 16), (1, 16)],
)
@settings(max_examples=40, deadline=None)
@given(winners=WINNERS, rule=RULES, ways=WAYS, sizes=SIZES)
def test_any_size_has_the_choice_that_resolution_finds(
    winners: list[Decision], rule: LearntDefault | None, ways: list[int], sizes: list[tuple[int, int]]
) -> None:
    agrees(winners, rule, ways, sizes)


@THOROUGH
@settings(max_examples=1000, deadline=None)
@given(winners=WINNERS, rule=RULES, ways=WAYS, sizes=SIZES)
def test_any_size_of_thousands_of_databases_has_the_choice_that_resolution_finds(
    winners: list[Decision], rule: LearntDefault | None, ways: list[int], sizes: list[tuple[int, int]]
) -> None:
    agrees(winners, rule, ways, sizes)


def test_only_implementations_before_the_best_are_asked_at_each_size() -> None:
    asked: list[str] = []

    class Counting(Choosy):
        def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
            asked.append(self.name)
            return [] if problem.rows else ["no rows"]

    implementations = tuple(Counting(name, way) for name, way in zip(NAMES, (3, 4, 2), strict=True))
    first_choice = FirstChoice(Situation(SOFTMAX, posed(1, 16), CPU, implementations, OpWinners()))
    found = [first_choice.choice(posed(rows, 16)) for rows in range(6, 9)]
    assert {one.candidate.implementation.name for one in found if one is not None} == {"a.two"}
    assert set(asked) == {"a.two"}

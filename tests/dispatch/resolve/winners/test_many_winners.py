"""Which winners are considered, in which order: held against a plain implementation, on random winners."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch

from registry import Device, Op, Problem
from registry.contract import Floor, Tolerance
from registry.dispatch.resolve.winners import REGIME, OpWinners, Winners, source_of
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store
from tuning_db.snapshot import read_winners

from ....tiers import one_of_each

PAIRS = Op(
    name="test::pairs",
    schema="test::pairs(Tensor x) -> Tensor y",
    version=2,
    reference=lambda x: x.clone(),
    fake=torch.empty_like,
    problem=lambda arguments: Problem("test::pairs", {"m": 1, "n": 1, "k": 1}),
    inputs=lambda problem, _kind, _generator: (torch.zeros(1),),
    floor=lambda _: Floor(0, 0),
    tolerance=Tolerance({}, {}, lambda _, reference: reference),
    static=frozenset({"k"}),
    dynamic=frozenset({"m", "n"}),
    distributions={"routing": ("even", "skewed")},
)
SIZES = [0, 1, 2, 3, 4, 6, 8, 9, 1000]
K = [1, 1.0, True, 64, -0.0, 0.0]
"""Values that are equal to Python and another dimension each."""


def random_dims(chance: random.Random) -> dict[str, Any]:
    dims = {"m": chance.choice(SIZES), "n": chance.choice([1, 2, 2.0, 4]), "k": chance.choice(K)}
    return {**dims, "routing": chance.choice(["even", "skewed", "unheard of"])}


def random_decision(chance: random.Random) -> Decision:
    device = Device.of("cpu")
    software = chance.choice([device.software(), {"torch": "another"}, {"torch": "a third"}])
    return Decision(
        problem=ProblemKey(PAIRS.name, chance.choice([1, 2, 2, 2]), random_dims(chance), ("k", "routing")),
        environment=Environment(device.hardware(), software),
        protocol=Protocol(REGIME),
        candidate=CandidateKey(chance.choice("ab"), chance.choice("12"), {"block": chance.choice([1, 2, 3])}),
        median_us=1.0,
        uid=f"{chance.getrandbits(128):032x}",
        created=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(1000)),
    )


def key(dims: Any) -> str:
    return json.dumps(dict(dims), sort_keys=True)


class Plain:
    """The user's winners and those shipped, with every question answered by looking at all of them."""

    def __init__(self, own: list[Decision], shipped: list[Decision]) -> None:
        software = dict(Device.of("cpu").software())
        newest = sorted(own, key=lambda one: (one.created, one.uid), reverse=True)
        known = {one.uid for one in own}

        def rank(one: Decision) -> tuple[bool, bool]:
            return one.problem.op_version != PAIRS.version, dict(one.environment.software) != software

        behind = sorted((one for one in shipped if one.uid not in known), key=rank)
        self.all = [*sorted(newest, key=rank), *behind]
        self.behind = {one.uid for one in behind}

    def exact(self, problem: Problem) -> list[str]:
        return [one.uid for one in self.all if key(one.problem.dims) == key(problem.dims)]

    def nearest(self, problem: Problem) -> Iterator[tuple[float, Decision]]:
        def octaves(dims: Any) -> float:
            return math.hypot(*(math.log2(max(problem.dims[name], 1) / max(dims[name], 1)) for name in ("m", "n")))

        def unlike(dims: Any) -> int:
            places = {problem.dims["routing"]: 0, "even": 1, "skewed": 2} | {problem.dims["routing"]: 0}
            return places.get(dims["routing"], 3)

        def tie(pair: tuple[int, Decision]) -> tuple[Any, ...]:
            dims = pair[1].problem.dims
            larger = [-float(dims["m"]), -float(dims["n"])]
            return octaves(dims), unlike(dims), pair[1].uid in self.behind, larger, pair[0]

        alike = [pair for pair in enumerate(self.all) if repr(pair[1].problem.dims["k"]) == repr(problem.dims["k"])]
        for _, one in sorted(alike, key=tie):
            if key(one.problem.dims) != key(problem.dims):
                yield octaves(one.problem.dims), one


def first_of_each(plain: Plain, problem: Problem, spent: set[Any]) -> Iterator[tuple[float, str]]:
    """The nearest of each candidate, of the user's and of those shipped, but for those ``spent`` by then."""
    seen = set()
    for octaves, one in plain.nearest(problem):
        candidate = one.uid in plain.behind, one.candidate.key, one.problem.op_version
        if candidate not in seen and source_of(one) not in spent:
            seen.add(candidate)
            yield octaves, one.uid


def filled(store: Store, chance: random.Random, count: int) -> tuple[list[Decision], list[Decision]]:
    """(the user's winners, shipped ones), some of which the user has imported."""
    for decision in (random_decision(chance) for _ in range(count)):
        store.publish(store.start_run(decision.environment), decision)
    own = store.winners(op=PAIRS.name, hardware=Device.of("cpu").hardware())
    return own, [*chance.sample(own, 5), *(random_decision(chance) for _ in range(count // 3))]


@pytest.mark.parametrize("seed", one_of_each(range(6)))
def test_the_choice_is_that_of_looking_at_every_winner(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    own, shipped = filled(store, chance, 60)
    device = Device.of("cpu")
    stored = read_winners(None, PAIRS.name, device.hardware(), REGIME, 60)
    told: list[str] = []
    winners = OpWinners(stored, shipped=tuple(shipped), software=device.software(), tell=told.append)
    plain = Plain(own, shipped)
    problems = [Problem(PAIRS.name, random_dims(chance)) for _ in range(40)]
    problems += [Problem(PAIRS.name, one.problem.dims) for one in own[:10]]
    for problem in problems:
        assert [one.uid for one in winners.index.exact(PAIRS, problem)] == plain.exact(problem)
        found = [(near.octaves, near.decision.uid) for near in winners.index.nearest(PAIRS, problem)]
        assert found == list(first_of_each(plain, problem, set()))
    assert told == []


@pytest.mark.thorough
def test_those_of_a_spent_source_are_left_out(store: Store) -> None:
    chance = random.Random(1)
    own, _ = filled(store, chance, 40)
    winners = Winners().of(PAIRS, Device.of("cpu"))
    for _ in range(20):
        problem = Problem(PAIRS.name, random_dims(chance))
        spent: set[Any] = set()
        found = []
        for near in winners.index.nearest(PAIRS, problem, spent):
            found.append((near.octaves, near.decision.uid))
            spent.add(source_of(near.decision))
        expected_spent: set[Any] = set()
        expected = []
        for pair in first_of_each(Plain(own, []), problem, expected_spent):
            expected.append(pair)
            expected_spent |= {source_of(one) for one in own if one.uid == pair[1]}
        assert found == expected
        assert len({source_of(one) for one in own}) >= len(found)


def test_a_problem_without_neighbours_has_none(store: Store) -> None:
    filled(store, random.Random(2), 10)
    winners = Winners().of(PAIRS, Device.of("cpu"))
    for dims in ({"m": 1, "n": 1, "k": 65, "routing": "even"}, {"m": 1, "n": 1, "k": "64", "routing": "even"}):
        problem = Problem(PAIRS.name, dims)
        assert (winners.index.exact(PAIRS, problem), list(winners.index.nearest(PAIRS, problem))) == ((), [])

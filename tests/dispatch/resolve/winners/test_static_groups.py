"""Which winners may answer at some static dimensions, held against looking at each of them; and what is decoded."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from registry import octave
from registry.dispatch.resolve.winners.static_groups import StaticGroups
from tuning_db import Transfer

from ....tiers import one_of_each
from .test_many_winners import PAIRS

MOVING = replace(PAIRS, static=frozenset({"k", "l", "kind"}), transfers={"k": octave, "l": lambda _: (1, 64)})
STATIC = ("k", "kind", "l")

Moves = Mapping[str, Transfer]


@dataclass
class Listed:
    """Winners in a list, with what was asked about them."""

    every: Sequence[tuple[dict[str, Any], Moves]]
    decoded: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.every)

    def alike(self) -> list[tuple[Any, list[int]]]:
        # every other winner was stored before "kind" was static
        told = ({name: dims[name] for name in STATIC if name != "kind" or place % 2} for place, dims in self._dims())
        return [(each, [place]) for place, each in enumerate(told)]

    def dims(self, places: Sequence[int]) -> list[Any]:
        self.decoded += places
        return [self.every[place][0] for place in places]

    def transferring(self) -> list[int]:
        return [place for place, (_, moves) in enumerate(self.every) if moves]

    def transfers(self, place: int) -> Moves:
        return self.every[place][1]

    def bad(self, place: int, why: str) -> None:
        self.skipped.append(place)

    def _dims(self) -> list[tuple[int, dict[str, Any]]]:
        return [(place, dims) for place, (dims, _) in enumerate(self.every)]


def dims_of(chance: random.Random) -> dict[str, Any]:
    sizes = {name: chance.choice([2, 3, 4, 5, 6, 7, 8, 12]) for name in ("k", "l", "m", "n")}
    return {**sizes, "kind": chance.choice("ab"), "routing": "even"}


def winner(chance: random.Random) -> tuple[dict[str, Any], Moves]:
    dims = dims_of(chance)
    moves = {}
    for name in chance.sample(["k", "l"], chance.randrange(3)):
        low, high = MOVING.transfers[name](dims[name])
        moves[name] = Transfer(chance.randint(low, dims[name]), chance.randint(dims[name], high), ("code",))
    return dims, moves


def answers(dims: Mapping[str, Any], one: tuple[Mapping[str, Any], Moves]) -> bool:
    """True if a winner has these static dimensions, or was verified there and differs in one of them alone."""
    own, moves = one
    moved = [name for name in STATIC if own[name] != dims[name]]
    return not moved or (
        len(moved) == 1 and moved[0] in moves and moves[moved[0]].low <= dims[moved[0]] <= moves[moved[0]].high
    )


@pytest.fixture
def listed() -> Callable[[int], Listed]:
    def listed(seed: int) -> Listed:
        chance = random.Random(seed)
        return Listed([winner(chance) for _ in range(60)])

    return listed


@pytest.mark.parametrize("seed", one_of_each(range(8)))
def test_a_group_is_that_of_looking_at_each_winner(listed: Callable[[int], Listed], seed: int) -> None:
    winners, chance = listed(seed), random.Random(seed)
    groups = StaticGroups(MOVING, STATIC, winners)
    for _ in range(100):
        dims = dims_of(chance)
        expected = [place for place, one in enumerate(winners.every) if answers(dims, one)]
        found = groups.group(dims)
        assert ([] if found is None else found.places) == expected
        for name in ("k", "l"):
            end = groups.stretch(dims, name)
            assert end >= dims[name]
            further = {**dims, name: int(min(end, 100))}
            assert [place for place, one in enumerate(winners.every) if answers(further, one)] == expected
    assert winners.skipped == []


def test_a_group_alone_is_decoded() -> None:
    every: list[tuple[dict[str, Any], Moves]] = [
        ({"k": 1 + number % 20, "l": 1, "m": number, "n": 1, "kind": "a", "routing": "even"}, {})
        for number in range(200)
    ]
    winners = Listed(every)
    groups = StaticGroups(replace(MOVING, transfers={}), ("k", "l"), winners)
    assert winners.decoded == []
    for _ in range(2):
        found = groups.group(every[3][0])
        assert found is not None
        assert found.places == winners.decoded == [*range(3, 200, 20)]


def test_groups_that_are_held_are_no_more_than_a_few_times_all_winners() -> None:
    dims = {"k": 8, "l": 1, "n": 1, "kind": "a", "routing": "even"}
    groups = StaticGroups(MOVING, ("k", "l"), Listed([({**dims, "m": m}, {"l": Transfer(1, 64)}) for m in range(300)]))
    for size in range(1, 65):
        found = groups.group({"k": 8, "l": size})
        assert found is not None
        assert len(found.places) == 300
        assert sum(len(each.places) for each in groups._found.values()) <= 4 * 1024

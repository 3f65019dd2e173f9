"""The time left of a run, by a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from registry.tuner import time_left
from registry.tuner.decide.judge import BLOCKS
from registry.tuner.time_left import TimeLeft, finals_seconds


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Found:
    best_us: float | None = 100.0
    seconds: float = 30.0
    setup_s: float = 0.0

    def setup_seconds(self, entrants: int, blocks: int) -> float:
        return self.setup_s * entrants * blocks


@dataclass
class Search:
    done: int
    candidates: int
    findings: Any = field(default_factory=Found)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time_left, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_searches_that_took_ten_seconds_each_leave_ten_for_each_other_and_the_finals(clock: Clock) -> None:
    left: Any = TimeLeft(10, None)
    left.batch_begins()
    over = [Search(8, 8), Search(8, 8)]
    assert left.in_search([], [Search(0, 8)]) is None
    clock.now += 25
    seconds = left.in_search(over, [Search(4, 8)])
    assert seconds == pytest.approx(7.5 * 10 + 10 * finals_seconds([Found()] * 3) / 3)  # type: ignore[list-item]
    assert left.in_search(over, [Search(5, 8)]) is None, "not so soon again"


def test_the_start_of_processes_is_not_the_pace_of_searches(clock: Clock) -> None:
    left: Any = TimeLeft(700, None)
    left.batch_begins()
    for _ in range(20):
        clock.now += 1
        assert left.in_search([], [Search(0, 64)]) is None
    clock.now += 2
    assert left.in_search([], [Search(2, 64)]) is None, "two trials tell too little"
    clock.now += 6
    seconds = left.in_search([Search(64, 64)], [Search(0, 64)])
    assert seconds == pytest.approx(699 * 8 + 700 * finals_seconds([Found()] * 2) / 2)  # type: ignore[list-item]


def test_until_a_search_is_over_none_is_thought_to_take_more_than_its_budget(clock: Clock) -> None:
    left: Any = TimeLeft(700, None, devices=2, search_s=30.0)
    left.batch_begins()
    left.in_search([], [Search(0, 64)])
    clock.now += 60
    finals = 700 * finals_seconds([Found()], 2)  # type: ignore[list-item]
    seconds = left.in_search([], [Search(2, 64)])
    assert seconds == pytest.approx((700 - 2 / 64) * 15 + finals)
    clock.now += 40
    assert left.in_search([Search(64, 64)], []) == pytest.approx(699 * 100 + finals), "what searches took is known"


def test_blocks_that_are_over_tell_how_long_the_others_take(clock: Clock) -> None:
    left: Any = TimeLeft(4, None)
    left.batch_begins()
    clock.now += 40
    left.finals_begin(4)
    found = [Found()] * 4
    assert left.in_finals(1, 5, found) == pytest.approx(finals_seconds(found))  # type: ignore[arg-type]
    clock.now += 6
    assert left.in_finals(3, 5, found) == pytest.approx(9.0)
    clock.now += 9
    left.finals_end(4)


def test_searches_end_in_time_for_their_finals(clock: Clock) -> None:
    left: Any = TimeLeft(4, 60.0)
    left.batch_begins()
    active = [Search(3, 8), Search(3, 8)]
    needed = finals_seconds([search.findings for search in active], blocks=BLOCKS)
    clock.now += 59 - needed
    assert not left.out_of_time([], active)
    assert left.in_search([], active) <= 60
    clock.now += 2
    assert left.out_of_time([], active)
    assert left.out_of_time([], []), "once and for all"
    assert TimeLeft(4, None).out_of_time([], []) is False


def test_finals_of_problems_whose_set_up_is_slow_begin_earlier(clock: Clock) -> None:
    usual, slow = finals_seconds([Found()] * 20), finals_seconds([Found(setup_s=0.2)] * 20)  # type: ignore[list-item]
    assert slow == pytest.approx(usual + 20 * 5 * (1.0 - 0.3))
    left: Any = TimeLeft(20, 3 / 5 * usual + 20.0)
    left.batch_begins()
    assert not left.out_of_time([], [Search(3, 8)] * 20)
    assert left.out_of_time([], [Search(3, 8, Found(setup_s=0.2))] * 20)


@pytest.mark.parametrize(("limit", "room"), [(None, True), (59.0, False), (61.0, True)])
def test_another_block_is_held_where_two_fit_into_the_limit(clock: Clock, limit: float | None, room: bool) -> None:
    left: Any = TimeLeft(4, limit)
    left.batch_begins()
    clock.now += 20
    left.finals_begin(4)
    clock.now += 20
    assert left.has_room_for_two(2) is room


def test_finals_of_slow_problems_take_their_seconds_and_of_nothing_right_none() -> None:
    slow, none = Found(best_us=2e6), Found(best_us=None)
    assert finals_seconds([none]) == 0.0  # type: ignore[list-item]
    assert finals_seconds([slow]) > 30.0  # type: ignore[list-item]

"""Other draws of integers: which are alike, and how soon a search that finds none is given up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, islice, repeat
from typing import Any

import pytest
import torch

from registry.contracts import ATTENTION_DECODE, SQUARE
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.verify import other_draws
from registry.tuner.verify.other_draws import AlikeDraws
from registry.tuner.verify.session import Session

from ..going_through import CPU

SHOWN = torch.arange(100, dtype=torch.int32)
ALIKE, UNLIKE = SHOWN.flip(0), SHOWN * 2
DECODE = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 72, "head_dim": 16, "page": False, "span": False,
    "softcap": False, "kv_dtype": "auto", "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a busy machine end no search."""
    monkeypatch.setattr(other_draws, "_UNLIKE_S", math.inf)
    monkeypatch.setattr(other_draws, "_DRAWS_S", math.inf)


class Drawn:
    """Draws of a floating argument and of integers, which are counted."""

    def __init__(self, integers: Iterable[torch.Tensor], shown: torch.Tensor = SHOWN) -> None:
        self._integers = iter(integers)
        self.count = 0
        self.draws = AlikeDraws({1: shown}, self._draw)

    def _draw(self) -> tuple[Any, ...]:
        self.count += 1
        return torch.ones(7), next(self._integers)


def session_of(lengths: str, batch: int) -> tuple[Session, list[int]]:
    """A session, and a list that grows with each draw."""
    problem = ATTENTION_DECODE.problem_of({**DECODE, "lengths": lengths, "batch": batch})
    session, drawn = Session(ATTENTION_DECODE, problem, CPU, TimingProtocol.of(CPU), 3), list[int]()
    draw = session._drawn

    def counted(kind: str, again: int = 0) -> tuple[Any, ...]:
        drawn.append(again)
        return draw(kind, again)

    session._drawn = counted  # type: ignore[method-assign]
    return session, drawn


def test_one_draw_tells_that_integers_are_not_random_and_no_candidate_asks_again() -> None:
    session, drawn = session_of("full", 4)
    places = session.fixed(session.unmutated)
    assert places == (3,)
    drawn.clear()
    assert [list(session.other_draws(places)) for _ in range(3)] == [[], [], []]
    assert len(drawn) == 1


def test_integers_that_are_in_another_order_are_alike_and_are_drawn_once_for_all_candidates(unhurried: None) -> None:
    # of so many lengths no order comes twice
    session, drawn = session_of("uniform", 60)
    places = session.fixed(session.unmutated)
    drawn.clear()
    met = [[draw[3] for draw in islice(session.other_draws(places), 2)] for _ in range(3)]
    assert len(drawn) == 2
    assert all(one is other for one, other in zip(chain(*met), met[0] * 3, strict=True))
    assert session.nbytes >= 2 * 60 * 4


def test_nothing_is_drawn_where_there_are_no_integers() -> None:
    session = Session(SQUARE, SQUARE.problem_of({"n": 50, "dtype": "float32"}), CPU, TimingProtocol.of(CPU), 3)
    assert session.fixed(session.unmutated) == ()
    assert list(session.other_draws(())) == []


def test_an_empty_tensor_of_integers_is_not_exchanged() -> None:
    session, _ = session_of("full", 4)
    values = session.values(session.timed_kind)
    session._values[session.timed_kind] = (*values[:3], values[3][:0], *values[4:])
    session._mixable = True
    assert session.fixed(session.unmutated) == ()


def test_after_six_unlike_draws_in_a_row_there_are_no_others(unhurried: None) -> None:
    drawn = Drawn(chain(repeat(UNLIKE, 5), [ALIKE], repeat(UNLIKE)))
    for _ in range(3):
        assert [draw[1] is ALIKE for draw in drawn.draws] == [True]
    assert drawn.count == 5 + 1 + 6


@pytest.mark.parametrize("limit", ["_UNLIKE_S", "_UNLIKE_BYTES", "_DRAWS_S"])
def test_draws_that_take_long_or_much_end_sooner(monkeypatch: pytest.MonkeyPatch, unhurried: None, limit: str) -> None:
    monkeypatch.setattr(other_draws, limit, 0)
    drawn = Drawn(repeat(UNLIKE))
    assert list(drawn.draws) == list(drawn.draws) == []
    assert drawn.count == 1


def test_alike_draws_end_too_where_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_draws, "_DRAWS_S", 0)
    drawn = Drawn(repeat(ALIKE))
    assert len(list(drawn.draws)) == len(list(drawn.draws)) == drawn.count == 1


def test_only_alike_draws_are_held(unhurried: None) -> None:
    drawn = Drawn(chain([UNLIKE, ALIKE, SHOWN[:50], ALIKE], repeat(SHOWN.clone())))
    assert [draw[1] is ALIKE for draw in drawn.draws] == [True, True]
    assert drawn.draws.nbytes == 2 * ALIKE.nbytes
    assert drawn.count == 5


def test_two_candidates_that_take_turns_meet_the_same_draws(unhurried: None) -> None:
    drawn = Drawn(SHOWN.roll(count) for count in range(1, 100))
    one, other = iter(drawn.draws), iter(drawn.draws)
    for _ in range(5):
        assert next(one) is next(other)
    assert drawn.count == 5


def test_sums_of_large_tensors_take_little_memory(unhurried: None) -> None:
    shown = torch.ones(3 << 20, dtype=torch.uint8)
    shown[0] = 0
    drawn = Drawn([shown.flip(0), shown.clone()], shown)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        assert len(list(drawn.draws)) == 1
    assert 0 < max(event.self_cpu_memory_usage for event in profile.events()) <= 8 << 20

"""Where a winner's implementation or its library is absent, the next best of the same finals answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry import DispatchWarning
from registry.dispatch.dispatcher import Dispatcher
from tuning_db import Store

DIMS = {"cols": 16, "dtype": "float32"}
FINALS = {"a.good": {"block": 4}, "a.slow": {"block": 2}}
OVER = {"a.good": 1.4, "a.slow": 3.0}
MISSING = "its library is not installed: pip install gone"


def who(dispatcher: Dispatcher, rows: int) -> tuple[str, str, Any]:
    """Step, implementation and block of a call, by the dispatcher's explanation; the result is checked."""
    x = torch.randn(rows, 16)
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    told = dispatcher.explain("softmax", x)
    return told.step, told.implementation, told.config.get("block")


def test_the_next_best_answers_for_a_winner_that_is_not_installed(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    good = told("a.good")
    for one in (good, told("a.slow"), told("a.other", preference=9.0)):
        dispatcher.register(one)
    publish({**DIMS, "rows": 8}, "a.gone", {"block": 1}, baselines=OVER, finals=FINALS)
    assert who(dispatcher, 8) == ("exact", "a.good", 4)
    assert good.runs == [{"block": 4}]
    found = dispatcher.explain("softmax", torch.randn(8, 16))
    assert found.median_us == pytest.approx(12.5 * 1.4)
    assert found.misses == ("winner of exactly this problem: a.gone is not installed here",)
    story = str(found)
    assert "exact: the next best after the winner of exactly this problem" in story
    assert "timed  17.50 µs" in story
    assert "won    a.gone with 12.50 µs" in story
    assert {other.name: other.reasons[0] for other in found.others}["a.slow"].endswith(
        "2.14 times as long in the finals"
    )


def test_an_adapter_without_its_library_gives_way_and_says_what_to_install(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    adapter = told("a.adapter", unsupported=lambda _: [MISSING])
    adapter.source = "without the library"
    dispatcher.register(adapter)
    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.adapter", {"block": 1}, baselines=OVER, finals=FINALS)
    assert who(dispatcher, 8) == ("exact", "a.good", 4)
    (missed,) = dispatcher.explain("softmax", torch.randn(8, 16)).misses
    assert missed == f"winner of exactly this problem: a.adapter: {MISSING}"


def test_the_winner_answers_where_its_library_is_installed(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.adapter"))
    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.adapter", {"block": 1}, baselines=OVER, finals=FINALS)
    assert who(dispatcher, 8) == ("exact", "a.adapter", 1)


def test_a_winner_whose_source_has_changed_has_no_stand_in(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    """Its new source may be faster than what it was measured against: the default decides."""
    winner = told("a.winner", preference=1.0, blocks=lambda _: [2, 8])
    winner.source = "2"
    dispatcher.register(winner)
    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.winner", {"block": 1}, baselines=OVER, finals=FINALS)
    assert who(dispatcher, 8) == ("default", "a.winner", 2)
    (missed,) = dispatcher.explain("softmax", torch.randn(8, 16)).misses
    assert missed.endswith("the source of a.winner has changed since it was measured")


def test_a_stand_in_is_the_code_that_was_measured(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    good, slow = told("a.good"), told("a.slow")
    dispatcher.register(good)
    dispatcher.register(slow)
    good.source = "2"
    publish({**DIMS, "rows": 8}, "a.gone", {"block": 1}, baselines=OVER, finals=FINALS)
    assert who(dispatcher, 8) == ("exact", "a.slow", 2)


def test_what_was_not_timed_in_the_finals_is_no_stand_in(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.gone", {"block": 1}, finals={"a.good": {"block": 4}})
    assert who(dispatcher, 8) == ("default", "a.good", 1)


@pytest.mark.thorough
def test_at_other_sizes_the_next_best_of_the_nearest_is_expected_with_its_own_time(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    for one in (told("a.good"), told("a.slow"), told("a.far")):
        dispatcher.register(one)
    publish({**DIMS, "rows": 8}, "a.gone", {"block": 1}, baselines=OVER, finals=FINALS)
    publish({**DIMS, "rows": 4096}, "a.far", {"block": 2}, baselines={"a.good": 1.1, "a.slow": 1.2})
    assert who(dispatcher, 12) == ("nearest", "a.good", 4)
    found = dispatcher.explain("softmax", torch.randn(12, 16))
    assert found.there_us == pytest.approx(12.5 * 1.4)
    assert "rows=8: it took 17.50 µs, a.gone won with 12.50 µs" in str(found)
    assert "winner of rows=8: a.gone is not installed here" in found.misses


def test_in_mode_verified_a_stand_in_was_verified_with_this_software(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.gone", {"block": 1}, baselines=OVER, finals=FINALS)
    publish({**DIMS, "rows": 9}, "a.gone", {"block": 1}, software={"torch": "1.0"}, baselines=OVER, finals=FINALS)
    dispatcher.configure(mode="verified")
    assert who(dispatcher, 8) == ("exact", "a.good", 4)
    assert dispatcher.explain("softmax", torch.randn(9, 16)).step == "nearest"


def test_winners_of_an_unreadable_database_have_no_stand_in(
    dispatcher: Dispatcher, told: Any, publish: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from registry.dispatch.resolve.winners import evidence

    def broken(*_given: Any) -> Any:
        raise OSError("the disk is gone")

    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.gone", {"block": 1}, baselines=OVER, finals=FINALS)
    monkeypatch.setattr(evidence, "read_runners", broken)
    with pytest.warns(DispatchWarning, match="the disk is gone"):
        assert who(dispatcher, 8) == ("default", "a.good", 1)

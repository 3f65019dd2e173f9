"""The winners that are timed again: of this hardware, from before a change, the likelier the more time they take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from registry import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.resolve.winners import Winners
from registry.drift.sampling import InstalledWinner, calls_of, changes, sampled, winners_of
from registry.problem import Problem
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

CPU = Device.of("cpu")
CATALOG = Catalog(entry_points=())
SQUARE = CATALOG.op("square")


def square(n: int) -> Problem:
    return SQUARE.problem_of({"n": n, "dtype": "float32"})


def decision(n: int, median_us: float = 1.0, *, torch: str = "2.0", **identity: Any) -> Decision:
    software = {**CPU.software(), "torch": torch}
    environment = Environment({**CPU.hardware(), **identity}, software)
    return Decision(problem_key(SQUARE, square(n)), environment, Protocol("cold"), CandidateKey("a", "f"), median_us)


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """Store decisions; returns the winners that dispatch reads."""
    path = tmp_path / "tuning.db"

    def stored(*decisions: Decision) -> Winners:
        with Store.open(path) as store:
            for one in decisions:
                assert store.publish(store.start_run(one.environment), one)
        return Winners(str(path))

    return stored


def test_winners_of_this_hardware_and_of_installed_ops_are_candidates(stored: Any) -> None:
    older, newer = decision(8, torch="2.0"), decision(8, torch="2.1")
    there = ProblemKey("acme::gone", 1, {"n": 8}), newer.environment, newer.protocol
    gone = Decision(*there, newer.candidate, 1.0)
    winners = stored(older, newer, gone, decision(16, name="another CPU"))
    found = winners_of(winners, CATALOG, CPU)
    assert [(one.problem, one.decision.uid) for one in found] == [(square(8), newer.uid)]
    here, latest = decision(8, torch=CPU.software()["torch"]), decision(8, torch="2.2")
    assert winners_of(stored(here, latest), CATALOG, CPU)[0].decision.uid == here.uid, "as dispatch has it"
    assert winners_of(Winners("nowhere.db"), CATALOG, CPU) == []


def test_a_change_of_torch_triton_or_the_driver_counts() -> None:
    assert changes(decision(8), CPU) == [f"torch 2.0 -> {CPU.software()['torch']}"]
    here = Environment(CPU.hardware(), {**CPU.software(), "python": "2.7", "driver": "1"})
    same = Decision(problem_key(SQUARE, square(8)), here, Protocol("cold"), CandidateKey("a", "f"), 1.0)
    assert changes(same, CPU) == ["driver 1 -> none"]


def test_calls_count_for_the_winner_that_answers_them(stored: Any) -> None:
    small, large = decision(64), decision(2**20)
    counts = {square(64): 3, square(65): 4, square(2**20 - 1): 5}
    assert calls_of(counts, stored(small, large), CATALOG, CPU) == {small.uid: 7, large.uid: 5}


def test_the_more_time_a_winner_takes_the_likelier_it_is_drawn() -> None:
    winners = [InstalledWinner(decision(n, us), square(n)) for n, us in ((1, 1.0), (2, 1.0), (3, 6.0), (4, 100.0))]
    calls = {one.decision.uid: count for one, count in zip(winners, (1, 3, 1, 0), strict=True)}
    first = Counter(sampled(winners, calls, 1, seed)[0].problem.n for seed in range(3000))
    assert first.keys() == {1, 2, 3}
    shares = [first[n] / 3000 for n in (1, 2, 3)]
    assert shares == [pytest.approx(share, abs=0.04) for share in (0.1, 0.3, 0.6)]
    assert sampled(winners, calls, 9, 0) == sampled(winners[::-1], calls, 9, 0)
    assert len(sampled(winners, calls, 9, 0)) == 3, "one that nobody calls is not drawn"
    assert {one.problem.n for one in sampled(winners, {}, 9, 0)} == {1, 2, 3, 4}, "without counts all are"

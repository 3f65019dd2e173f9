"""Winners compared: slower and faster beyond noise, new, gone and changed; other hardware is not compared."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from registry.report.comparison import UNKNOWN_NOISE, compare_winners, stored_winners, time_of
from tuning_db import CandidateKey, Decision, Environment, Final, Store

from .records import COLD, H200, ROW, SPLIT, decision, softmax


def finals(us: float, candidate: CandidateKey = ROW, *, step: float = 0.001, blocks: int = 5) -> list[Final]:
    """Finals of several processes, which differ by ``step``."""
    return [
        Final(candidate, "candidate", block, round_, 0, us * (1 + step * block))
        for block in range(blocks)
        for round_ in range(3)
    ]


def store_of(path: Path, *found: tuple[Decision, list[Final]]) -> Path:
    with Store.open(path) as store:
        run = store.start_run(H200)
        for one, measured in found:
            assert store.publish(run, one, measured)
    return path


def winners(path: Path, until: datetime | None = None) -> list:  # type: ignore[type-arg]
    with Store.open(path) as store:
        return stored_winners(store, until)


def test_an_interval_is_that_of_processes_and_at_least_the_noise() -> None:
    one = decision(softmax(1), ROW, 10.0, aa=0.0)
    few, many = (time_of(one, finals(10.0, blocks=blocks)) for blocks in (3, 9))
    assert few.high - few.low > many.high - many.low > 0
    assert few.low < 10.0 < few.high
    wider = time_of(replace(one, aa=0.2), finals(10.0))
    assert (wider.low, wider.high) == pytest.approx((8.19, 12.21), abs=0.01)
    assert time_of(replace(one, aa=None), []).low == pytest.approx(10.0 * (1 - UNKNOWN_NOISE), rel=0.01)
    assert time_of(one, finals(10.0, SPLIT)) == time_of(one, [])  # of another candidate


def test_changes_beyond_noise_are_told_from_those_within(tmp_path: Path) -> None:
    sizes = {1: (10.0, 10.02), 2: (10.0, 12.0), 4: (10.0, 8.0)}
    before = [(decision(softmax(rows), ROW, us, aa=0.005), finals(us)) for rows, (us, _) in sizes.items()]
    after = [(decision(softmax(rows), ROW, us, aa=0.005), finals(us)) for rows, (_, us) in sizes.items()]
    before.append((decision(softmax(8), ROW, 5.0), []))
    after.append((decision(softmax(16), SPLIT, 5.0), []))
    after[2] = (replace(after[2][0], candidate=SPLIT), finals(8.0, SPLIT))
    done = compare_winners(winners(store_of(tmp_path / "a", *before)), winners(store_of(tmp_path / "b", *after)))
    found = {change.problem.dims["rows"]: change for change in done.changes}
    assert {rows: change.kind for rows, change in found.items()} == {
        1: "same", 2: "slower", 4: "faster", 8: "gone", 16: "new",
    }  # fmt: skip
    assert [rows for rows, change in found.items() if change.changed] == [4]
    assert found[2].ratio == pytest.approx(1.2)
    assert not done.ok
    assert compare_winners(winners(tmp_path / "b"), winners(tmp_path / "b")).ok


def test_other_hardware_is_told_and_not_compared(tmp_path: Path) -> None:
    other = Environment({"type": "cuda", "name": "NVIDIA A100"}, H200.software)
    here = store_of(tmp_path / "a", (decision(softmax(1), ROW, 1.0), []))
    there = store_of(tmp_path / "b", (Decision(softmax(1), other, COLD, ROW, 9.0), []))
    done = compare_winners(winners(here), winners(there))
    assert (done.changes, done.only_before, done.only_after) == ([], ["NVIDIA H200"], ["NVIDIA A100"])
    assert done.ok


def test_a_database_is_read_as_it_was_at_a_date(tmp_path: Path) -> None:
    first = decision(softmax(1), ROW, 10.0, created=datetime(2026, 1, 1, tzinfo=UTC))
    second = decision(softmax(1), SPLIT, 5.0, created=datetime(2026, 3, 1, tzinfo=UTC), previous=first.uid)
    path = store_of(tmp_path / "a", (first, []), (second, []))
    at = {month: winners(path, datetime(2026, month, 15, tzinfo=UTC)) for month in (1, 2, 3)}
    assert [one.decision.uid for month in at for one in at[month]] == [first.uid, first.uid, second.uid]
    assert winners(path, datetime(2025, 12, 31, tzinfo=UTC)) == []
    (change,) = compare_winners(at[2], at[3]).changes
    assert (change.kind, change.changed) == ("faster", True)

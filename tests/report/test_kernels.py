"""Leaderboards, and the pages of kernels: whom they beat where, what was tried and what it takes."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from registry.report.facts import ProblemFacts, Section, read
from registry.report.kernels import KernelPage, SettingFigures, kernels
from registry.report.leaderboard import leaderboard
from registry.report.tally import FASTEST, tally
from tuning_db import CandidateKey, Store
from tuning_db.searches import TrialFigures

from .measured import SPILLS, TILE, WIDE, fill_measured
from .records import H200, decision, fill, softmax


def section_of(path: Path) -> Section:
    with Store.open(path) as store:
        return read(store).sections[0]


def page(section: Section, name: str) -> KernelPage:
    return next(one for one in kernels(section, "s0") if one.implementation == name)


def test_the_leaderboard_counts_what_was_not_timed_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        run = store.start_run(H200)
        store.publish(run, decision(softmax(1), CandidateKey("a", "f", {}), 4.0, baselines={"b": 2.0}))
        store.publish(run, decision(softmax(2), CandidateKey("b", "f", {}), 4.0, baselines={"a": 4.0}))
        store.publish(run, decision(softmax(4), CandidateKey("b", "f", {}), 4.0, baselines={}))
        noise = decision(softmax(8), CandidateKey("a", "f", {}), 4.0, lo=1.0, hi=900.0, baselines={"b": 9.0})
        store.publish(run, noise)
    first, second = leaderboard(section_of(path))
    assert (first.rank, first.implementation, first.wins, first.met) == (1, "b", 2, 3)
    assert first.score == pytest.approx((0.5 + 1 + 1) / 3)
    assert first.over_best == pytest.approx(2 ** (1 / 3))
    assert (first.worst, first.of_floor) == (2.0, 0.5)
    assert (second.rank, second.wins, second.met) == (2, 1, 2)
    assert second.score == pytest.approx((1 + 0.25 + 0) / 3)
    assert second.of_floor == pytest.approx((0.5 + 0.125) / 2)


def test_without_decisions_there_is_no_leaderboard(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        store.add_trials(store.start_run(H200), [])
        store.publish(store.start_run(H200), decision(softmax(1), TILE, 4.0, lo=1.0, hi=900.0))
    assert leaderboard(section_of(path)) == []


def test_a_page_tells_whom_the_kernel_beats_and_where(tmp_path: Path) -> None:
    tile = page(section_of(fill_measured(tmp_path / "a.db")), "triton.tile")
    (meeting,) = tile.meetings
    assert (meeting.other, meeting.faster, meeting.tied, meeting.slower) == ("torch.native", 1, 0, 1)
    assert meeting.ratio == pytest.approx((2.0 / 1.25) ** 0.5)
    assert (meeting.most[0], meeting.most[1].problem.dims["m"]) == (2.0, 1)
    assert (meeting.least[0], meeting.least[1].problem.dims["m"]) == (0.8, 1024)
    assert (tile.wins, tile.fingerprints, tile.trials) == (1, ["f7"], 6)
    assert [(time.over_best, time.won, time.trials) for time in tile.times] == [(1.0, True, 3), (1.25, False, 3)]


def test_what_noise_hides_or_the_decision_calls_a_tie_is_tied(tmp_path: Path) -> None:
    split = page(section_of(fill(tmp_path / "a.db")), "triton.split")
    row = next(meeting for meeting in split.meetings if meeting.other == "triton.row")
    assert (row.faster, row.tied, row.slower) == (1, 1, 0)


def test_pages_look_at_each_time_once_however_many_implementations_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"acme.kernel{number}" for number in range(12)]
    with Store.open(tmp_path / "a.db") as store:
        run = store.start_run(H200)
        for rows in (1, 2, 4):
            baselines = {name: 1.0 + place for place, name in enumerate(names[1:], 1)}
            store.publish(run, decision(softmax(rows), CandidateKey(names[0], "f"), 4.0, baselines=baselines))
    section, speedup, asked = section_of(tmp_path / "a.db"), ProblemFacts.speedup, []

    def counted(facts: ProblemFacts, implementation: str) -> float | None:
        asked.append(implementation)
        return speedup(facts, implementation)

    monkeypatch.setattr(ProblemFacts, "speedup", counted)
    pages = kernels(section, "s0")
    assert len(asked) <= len(names) * 3
    last = next(one for one in pages if one.implementation == names[9])
    assert [meeting.other for meeting in last.meetings] == [*reversed(names[10:]), *reversed(names[:9])]
    assert {(one.faster, one.slower) for one in last.meetings} == {(3, 0), (0, 3)}


def test_a_page_tells_registers_and_spills_of_what_was_timed(tmp_path: Path) -> None:
    tile = page(section_of(fill_measured(tmp_path / "a.db")), "triton.tile")
    assert tile.resources
    assert tile.times[0].timed.resources["registers"] == 96
    assert [(best.config, over) for _, best, over in tile.configs[:3]] == [
        (TILE.config, 1.0), (WIDE.config, 1.5), (SPILLS.config, 3.0),
    ]  # fmt: skip
    assert [dict(best.resources).get("spill_bytes") for _, best, _ in tile.configs[:3]] == [0, None, 64]
    assert not page(section_of(tmp_path / "a.db"), "torch.native").resources


def test_a_page_tells_what_each_value_of_a_parameter_costs(tmp_path: Path) -> None:
    tile = page(section_of(fill_measured(tmp_path / "a.db")), "triton.tile")
    assert list(tile.settings) == [
        SettingFigures("BLOCK", "64", 2, 2, 1.0),
        SettingFigures("BLOCK", "128", 2, 2, 1.5),
        SettingFigures("BLOCK", "256", 2, 2, 3.0),
        SettingFigures("num_warps", "4", 2, 2, 1.0),
        SettingFigures("num_warps", "8", 4, 4, 1.5),
    ]


def attempt(number: int, us: float | None, status: str = "ok", resources: str | None = None) -> TrialFigures:
    return TrialFigures(CandidateKey("a", "f", {"n": number}), status, False, us, "", resources)


def test_a_tally_keeps_the_fastest_configurations_once_each() -> None:
    times = [9.0, 3.0, 8.0, 1.0, 7.0, 2.0, 6.0]
    trials = [attempt(number, us) for number, us in enumerate(times)]
    found = tally([*trials, attempt(3, 1.5), attempt(5, 0.5), attempt(99, None, "crash")])
    assert [best.us for best in found.fastest["a"]] == [0.5, 1.0, 3.0, 6.0, 7.0]
    assert len(found.fastest["a"]) == FASTEST
    assert found.best["a"].config == {"n": 5}
    assert (found.settings["a"]["n", 99].right, found.settings["a"]["n", 5].trials) == (0, 2)


def test_a_tally_holds_figures_and_no_trials() -> None:
    def held(times: int) -> int:
        trials = (attempt(number % 20, 1.0 + number, resources='{"registers": 32}') for number in range(20 * times))
        tracemalloc.start()
        found = tally(trials)
        gc.collect()  # frees what Python keeps for objects to come
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert found.trials == 20 * times
        return size

    held(1)  # what is made once
    assert held(50) < 2 * held(1)


@pytest.mark.parametrize("text", [None, "null", "5", "[]", '{"registers": "many", "threads": true}'])
def test_resources_of_another_form_are_none(text: str | None) -> None:
    assert tally([attempt(0, 1.0, resources=text)]).best["a"].resources == {}


def test_a_value_that_is_a_list_is_a_value() -> None:
    odd = TrialFigures(CandidateKey("a", "f", {"tile": [64, 64]}), "ok", False, 1.0, "")
    assert list(tally([odd]).settings["a"]) == [("tile", "[64, 64]")]

"""What a report is about: only what was measured alike is put side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from registry.report import figures
from registry.report.charts import time_charts, x_dimension
from registry.report.facts import Facts, read
from tuning_db import CandidateKey, ProblemKey, Store

from .records import H200, HOT, OLDER, ROW, SPLIT, TORCH, decision, fill, softmax, trial


def facts_of(path: Path) -> Facts:
    with Store.open(path) as store:
        return read(store)


def test_a_section_is_an_op_on_a_hardware(tmp_path: Path) -> None:
    (section,) = facts_of(fill(tmp_path / "a.db")).sections
    assert (section.op, section.regime, section.trials, section.left_out) == ("softmax", "cold", 11, 0)
    assert section.varying == ["rows", "cols"]
    assert section.constant == {"dtype": "bfloat16"}
    assert section.implementations == ["torch.native", "triton.row", "triton.split"]
    assert [facts.decision is None for facts in section.problems] == [False, False, True]


def test_times_are_the_finals_where_there_were_any_and_else_the_search(tmp_path: Path) -> None:
    (section,) = facts_of(fill(tmp_path / "a.db")).sections
    first, _, undecided = section.problems
    assert {name: (timed.us, timed.in_finals) for name, timed in first.timed.items()} == {
        "triton.split": (4.0, True),
        "torch.native": (12.0, True),
        "triton.row": (6.0, True),
    }
    assert first.timed["triton.row"].config == {"num_warps": 4}, "neither the one given up nor the wrong one"
    assert [(timed.us, timed.in_finals) for timed in undecided.timed.values()] == [(50.0, False)]
    assert undecided.fraction_of_floor is None
    assert undecided.speedup("torch.native") is None


def test_microseconds_of_other_software_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    with Store.open(path) as store:
        old = store.start_run(OLDER)
        store.add_trials(
            old, [trial(softmax(1), ROW, 0.5, environment=OLDER), trial(softmax(1), ROW, 0.6, environment=OLDER)]
        )
        new = store.start_run(H200)
        store.add_trials(new, [trial(softmax(1), ROW, 5.0)])
    (section,) = facts_of(path).sections
    assert section.left_out == 2
    assert section.problems[0].timed["triton.row"].us == 5.0
    assert len(facts_of(path).runs) == 1


def test_an_older_version_of_an_op_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "versions.db"
    newer = ProblemKey("softmax", 2, softmax(1).dims, ("cols", "dtype"))
    with Store.open(path) as store:
        run = store.start_run(H200)
        store.add_trials(run, [trial(softmax(1), ROW, 5.0), trial(newer, ROW, 7.0)])
        store.publish(run, decision(softmax(1), ROW, 5.0))
    (section,) = facts_of(path).sections
    assert [facts.problem.op_version for facts in section.problems] == [2]
    assert section.left_out == 1


def test_a_decision_whose_trials_are_elsewhere_still_counts(tmp_path: Path) -> None:
    path = tmp_path / "bare.db"
    with Store.open(path) as store:
        store.publish(store.start_run(H200), decision(softmax(1), SPLIT, 4.0))
    (section,) = facts_of(path).sections
    assert (len(section.decided), section.trials) == (1, 0)
    assert figures.descents(section) == []
    assert figures.statuses(section).total == 0


def test_ratios_are_averaged_geometrically(tmp_path: Path) -> None:
    path = tmp_path / "ratios.db"
    with Store.open(path) as store:
        run = store.start_run(H200)
        for rows, ratio in ((1, 2.0), (2, 8.0)):
            store.publish(run, decision(softmax(rows), SPLIT, 4.0, baselines={"torch.native": ratio}))
        store.publish(run, decision(softmax(4), TORCH, 4.0))
        store.publish(run, decision(softmax(8), TORCH, 4.0, lo=5.1, hi=12922.3, baselines={"torch.compile": 4529.8}))
    found = figures.overview(facts_of(path).sections[0])
    assert found.over_torch == pytest.approx(16 ** (1 / 3)), "where torch won it is as fast as itself"
    # finals that were disturbed tell no ratio
    assert found.over_compile is None
    assert found.of_floor == 0.5
    assert found.wins == [("triton.split", 2), ("torch.native", 2)]
    assert found.noise == (0.01, 0.01)


def test_regret_is_above_the_final_best_and_ignores_what_was_wrong_or_given_up(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    with Store.open(path) as store:
        run = store.start_run(H200)
        times = [(None, "crash"), (20.0, "ok"), (25.0, "ok"), (10.05, "ok"), (10.0, "ok"), (11.0, "ok")]
        for number, (us, status) in enumerate(times):
            store.add_trials(run, [trial(softmax(1), CandidateKey("x", "f", {"n": number}), us, status)])
        store.add_trials(run, [trial(softmax(1), CandidateKey("x", "f", {"n": 99}), 1.0, censored=True)])
    (descent,) = figures.descents(facts_of(path).sections[0])
    assert descent.trials == 7
    assert [(number, round(regret, 4)) for number, regret in descent.steps] == [(2, 1.0), (4, 0.005), (5, 0.0)]
    assert descent.near_after == 4
    assert [descent.at(number) for number in (1, 3)] == [None, 1.0]


def test_frequent_messages_come_first_and_long_ones_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "failures.db"
    messages = ["ptxas died\nat line 1"] * 3 + ["x" * 5000] + [f"rare {number}" for number in range(9)]
    with Store.open(path) as store:
        run = store.start_run(H200)
        store.add_trials(run, [trial(softmax(1), ROW, None, "compile_error", message=one) for one in messages])
    found = figures.statuses(facts_of(path).sections[0])
    assert found.names == ["compile_error"]
    assert found.counts["triton.row"]["compile_error"] == 13
    assert len(found.failures) == 3
    assert (found.failures[0].message, found.failures[0].count) == ("ptxas died at line 1", 3)
    assert all(len(failure.message) <= 240 for failure in found.failures)


def test_what_noise_hides_is_a_tie(tmp_path: Path) -> None:
    (section,) = facts_of(fill(tmp_path / "a.db")).sections
    clear, tied = (figures.rival(facts) for facts in section.decided)
    assert clear == figures.Rival("triton.row", 1.5, False)
    assert tied == figures.Rival("triton.row", 1.005, True)


def test_ties_of_the_decision_are_ties(tmp_path: Path) -> None:
    path = tmp_path / "ties.db"
    ties = ("triton.row num_warps=4", "triton.row num_warps=8", "triton.split BLOCK=2048")
    with Store.open(path) as store:
        found = decision(softmax(1), SPLIT, 4.0, baselines={"triton.row": 1.2, "torch.native": 3.0}, ties=ties)
        store.publish(store.start_run(H200), found)
    (facts,) = facts_of(path).sections[0].problems
    assert figures.tied_with(facts) == ["triton.row", "triton.split"]
    assert figures.rival(facts) == figures.Rival("triton.row", 1.2, True)


def test_what_is_cold_and_what_is_hot_stand_apart(tmp_path: Path) -> None:
    path = tmp_path / "hot.db"
    with Store.open(path) as store:
        run = store.start_run(H200)
        store.publish(run, decision(softmax(1), SPLIT, 4.0))
        store.add_trials(run, [replace(trial(softmax(1), ROW, 1.0), protocol=HOT)])
        store.publish(run, replace(decision(softmax(1), ROW, 1.0), protocol=HOT))
    cold, hot = facts_of(path).sections
    assert [section.regime for section in (cold, hot)] == ["cold", "hot"]
    assert [facts.timed["triton.row"].us for facts in hot.problems] == [1.0]
    assert "triton.row" not in cold.problems[0].timed


def test_a_search_is_told_in_the_order_of_its_instants(tmp_path: Path) -> None:
    path = tmp_path / "imported.db"
    early, late = trial(softmax(1), ROW, 9.0), trial(softmax(1), SPLIT, 5.0)
    with Store.open(path) as store:
        store.add_trials(store.start_run(H200), [late, early])
    (facts,) = facts_of(path).sections[0].problems
    assert facts.search.steps == [(1, 9.0), (2, 5.0)]


def test_a_chart_stands_for_one_set_of_static_dimensions(tmp_path: Path) -> None:
    (section,) = facts_of(fill(tmp_path / "a.db")).sections
    assert x_dimension(section) == "rows"
    (chart,), too_few = time_charts(section)
    assert (chart.title, too_few) == ("cols=4096", 1)
    assert [tick.label for tick in chart.x_ticks] == ["1", "256"]
    assert [line.name for line in chart.lines] == ["floor", "torch.native", "triton.row", "triton.split"]
    heights = {line.name: [marker.y for marker in line.markers] for line in chart.lines if line.markers}
    assert all(slow < fast for slow, fast in zip(heights["torch.native"], heights["triton.split"], strict=True))
    assert heights["triton.split"][1] < heights["triton.split"][0], "a longer time is further up"
    assert chart.readings[0].lines == (
        ("triton.split", "4.000 µs", "BLOCK=1024 num_warps=8"),
        ("triton.row", "6.000 µs", "num_warps=4"),
        ("torch.native", "12.00 µs", ""),
        ("floor", "2.000 µs", ""),
    )


def test_an_op_without_a_dynamic_dimension_has_no_time_chart(tmp_path: Path) -> None:
    path = tmp_path / "fixed.db"
    problem = ProblemKey("transpose", 1, {"n": 64, "dtype": "float32"}, ("n", "dtype"))
    with Store.open(path) as store:
        store.add_trials(store.start_run(H200), [trial(problem, ROW, 5.0)])
    (section,) = facts_of(path).sections
    assert time_charts(section) == ([], 0)


def test_a_section_is_compared_with_the_baseline_that_its_op_names(tmp_path: Path) -> None:
    with Store.open(fill(tmp_path / "tuning.db")) as store:
        (torchs,), (own,) = (
            [section for section in read(store, (), *told).sections if len(section.decided) == 2]
            for told in ((), (lambda ops: dict.fromkeys(ops, "triton.row"),))
        )
    assert torchs.baseline == "torch.native"
    assert figures.overview(torchs).over_torch == pytest.approx(3.0)
    assert own.baseline == "triton.row"
    assert figures.overview(own).over_torch == pytest.approx((1.5 * 1.005) ** 0.5)

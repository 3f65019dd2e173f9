"""The table of dispatch beside its peers: who is best, by how much, and what counts as lost."""

from __future__ import annotations

import pytest

from benchmarks.against_peers import COPY, OURS, Row, _row, report, summary
from benchmarks.racing.projects import project_of, projects_in
from registry import api


def row_of(times: dict[str, list[float]]) -> Row:
    problem = api.dispatcher.catalog.op("softmax").problem_of({"rows": 4, "cols": 8, "dtype": "float32"})
    return _row(problem, ("exact", "triton.row"), times, {})


def test_the_best_rival_is_neither_dispatch_nor_the_copy() -> None:
    row = row_of({OURS: [10.0, 12.0], "torch.native": [20.0, 24.0], "Liger": [11.0, 12.0], COPY: [5.0, 5.0]})
    assert row.best == "Liger"
    assert row.over == pytest.approx((10 / 11 + 1) / 2)
    assert not row.lost


def test_slower_by_more_than_two_hundredths_is_lost() -> None:
    assert row_of({OURS: [10.3], "torch.native": [10.0]}).lost
    assert not row_of({OURS: [10.1], "torch.native": [10.0]}).lost


def test_a_row_without_rivals_is_a_row() -> None:
    row = row_of({OURS: [10.0], COPY: [9.0]})
    assert (row.best, row.over, row.lost) == ("", None, False)
    assert "| rows=4, cols=8, dtype=float32 | exact | triton.row | 10 | 0.90 |" in report([row])


def test_the_report_counts_what_is_lost() -> None:
    lost, won = row_of({OURS: [11.0], "Liger": [10.0]}), row_of({OURS: [10.0], "torch.native": [30.0]})
    text = report([lost, won])
    assert "1 lost by more than 2%" in text
    assert "1.100 at worst" in text
    assert "| 11 | - | 0.91 | - |" in text


def test_where_dispatch_does_not_run_the_benchmark_ends_with_the_reason() -> None:
    problem = api.dispatcher.catalog.op("softmax").problem_of({"rows": 4, "cols": 8, "dtype": "float32"})
    with pytest.raises(SystemExit, match=r"rows=4.*: refused"):
        _row(problem, ("default", "torch.native"), {}, {OURS: "refused"})


def test_the_summary_has_a_line_for_each_problem_with_the_best_of_each_project() -> None:
    times = {OURS: [10.5], "torch.native": [20.0], "torch.compile": [15.0], "SDPA flash": [12.0], COPY: [1.0]}
    row = row_of({**times, "Liger": [14.0], "liger.softmax": [13.0], "flash_attn.fa4": [10.0]})
    head, _, line = summary([row]).splitlines()
    wanted = "| op | problem | µs | torch µs | torch.compile µs | Liger µs | FlashAttention µs |"
    assert head.startswith(wanted)
    assert "| 10.5 | 12 | 15 | 13 | 10 |" in line


def test_a_project_is_known_by_how_its_contestants_begin() -> None:
    names = ("torch.native", "torch.compile max-autotune", "torch's own", "SDPA cuDNN", "FlashInfer", "quack.softmax")
    assert [project_of(name) for name in names] == [
        "torch", "torch.compile", "torch", "torch", "FlashInfer", "QuACK",
    ]  # fmt: skip
    assert project_of("GemLite") == "GemLite"
    assert projects_in(["GemLite", "quack.softmax", "torch.native"]) == ["torch", "QuACK", "GemLite"]

"""The figures of the fleet's benchmarks: how long a plan takes with so many workers, and what faults have cost."""

from __future__ import annotations

import pytest

from benchmarks.scale.fleet_faults import FAULTS, table
from benchmarks.scale.fleet_makespan import job_seconds, makespan, pace_for
from benchmarks.scale.fleet_queue import RECORDED

from ..fleet import test_faults as faults
from ..fleet.conftest import COUNTS_VARIABLE, counted


@pytest.mark.parametrize(("workers", "took"), [(1, 10), (2, 7), (3, 5), (9, 4)])
def test_a_worker_takes_the_next_job_when_it_has_done_one(workers: int, took: float) -> None:
    assert makespan([3, 1, 2, 4], workers) == took


def test_a_jobs_time_is_that_of_as_many_problems_of_a_recorded_run() -> None:
    each = {seconds / problems for seconds, problems, _ in RECORDED}
    found = job_seconds([1, 8] * 20)
    assert all(
        any(took == pytest.approx(size * one) for one in each) for size, took in zip([1, 8] * 20, found, strict=True)
    )
    assert job_seconds([1, 8] * 20) == found


def test_the_pace_is_that_of_the_nearest_load() -> None:
    paces = {8: 0.9, 64: 0.8, 512: 0.1}
    assert [pace_for(paces, workers) for workers in (1, 8, 50, 1000)] == [1.0, 0.9, 0.8, 0.1]


def test_counts_of_a_fault_are_added_up(tmp_path: object) -> None:
    first, second = list(FAULTS)[:2]
    lines = [{"test": first, "jobs": 2, "jobs_lost": 0, "trials_before": 4}, {"test": first, "jobs": 2, "jobs_lost": 1}]
    assert table(lines)[2:] == [f"| {FAULTS[first]} | 2 | 4 | 1 | 0 | 0 | 4 | 0 | 0 |"]
    assert len(table([*lines, {"test": second}])) == 4


def test_every_fault_of_the_table_is_a_test() -> None:
    here = {name for name in FAULTS if hasattr(faults, name)}
    assert len(here) == len(FAULTS) - 2, "two are in tests/fleet/on_ray"


def test_nothing_is_written_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv(COUNTS_VARIABLE, raising=False)
    counted(jobs=1)
    path = f"{tmp_path}/counts"
    monkeypatch.setenv(COUNTS_VARIABLE, path)
    counted(jobs=1)
    with open(path) as file:  # noqa: PTH123
        assert '"test": "test_nothing_is_written_where_no_file_is_named", "jobs": 1' in file.read()

"""Planners: a problem is in one open job of a model of device, however many planners name it, and however often."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tuning_db import JobQueue, MissingDatabaseError, OutdatedSchemaError, Store
from tuning_db.queue.entries import Added, FleetPlan, NewJob
from tuning_db.records import new_uid

from ..test_schema import FIXTURES, _restored
from .conftest import BOTH, GPU, Fleet, problems


def plan() -> FleetPlan:
    return FleetPlan(new_uid(), "planner")


def test_problems_of_open_jobs_are_not_added_again_until_these_are_over(fleet: Fleet) -> None:
    jobs = [NewJob(GPU, problems(1, 2)), NewJob(GPU, problems(3))]
    assert fleet.queue.add(plan(), jobs) == Added(2, 3, 0)
    assert fleet.queue.add(plan(), [NewJob(GPU, problems(2, 3, 4))]) == Added(1, 1, 2)
    assert fleet.queue.add(plan(), [NewJob("NVIDIA H100", problems(2))]) == Added(1, 1, 0)
    lease = fleet.takes(fleet.joins())
    assert fleet.queue.add(plan(), jobs) == Added(0, 0, 3)
    assert fleet.queue.complete(lease.fence)
    assert fleet.queue.add(plan(), jobs) == Added(1, 2, 1)


def test_one_problem_named_twice_in_a_plan_is_added_once(fleet: Fleet) -> None:
    assert fleet.queue.add(plan(), [NewJob(GPU, problems(1, 1)), NewJob(GPU, problems(1))]) == Added(1, 1, 2)


def test_a_plan_is_added_once_although_it_was_sent_twice(fleet: Fleet) -> None:
    sent = plan()
    assert [fleet.queue.add(sent, [NewJob(GPU, problems(1))]).jobs for _ in range(2)] == [1, 0]
    assert fleet.queue.status().open == 1


@BOTH
def test_planners_at_once_add_each_problem_once(url: str) -> None:
    JobQueue.open(url).close()
    began = threading.Barrier(4)

    def add(_: int) -> Added:
        with JobQueue.open(url) as queue:
            began.wait()
            return queue.add(plan(), [NewJob(GPU, problems(rows, rows + 1)) for rows in range(1, 20, 2)])

    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(add, range(4)))
    assert sum(each.problems for each in added) == 20
    assert sorted(each.already for each in added) == [0, 20, 20, 20]


def test_an_older_file_has_no_queue_until_it_is_upgraded(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v4.sql", tmp_path)
    with pytest.raises(OutdatedSchemaError, match="schema version 4, which has no work queue") as caught:
        JobQueue.open(path, create=False, migrate=False)
    assert "registry db upgrade" in caught.value.hint
    with JobQueue.open(path) as queue:
        assert queue.status().jobs == []
    with Store.open(path) as store:
        assert len(store.trials()) == 2


def test_the_queue_of_a_stored_file_is_read(tmp_path: Path) -> None:
    with JobQueue.open(_restored(FIXTURES / "v5.sql", tmp_path), create=False, migrate=False) as queue:
        (counts,) = queue.status().jobs
        assert (counts.device, counts.done, queue.status().open) == ("H200", 1, 0)
        assert queue.calibrations("H200", {"torch": "2.11"}) == {"GPU-1": {"copy": 10.0}}


def test_where_there_is_no_database_there_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(MissingDatabaseError):
        JobQueue.open(tmp_path / "none.db", create=False, migrate=False)

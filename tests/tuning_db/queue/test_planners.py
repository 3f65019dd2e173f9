"""Planners: a problem is in one open job of a model of device, however many planners name it, and however often."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tuning_db import JobQueue, MissingDatabaseError, OutdatedSchemaError, Store
from tuning_db.queue.entries import Added, FleetPlan, NewJob
from tuning_db.queue.tables import FleetJobRow
from tuning_db.records import new_uid

from ..test_schema import FIXTURES, _restored
from .conftest import BOTH, GPU, Fleet, problems
from .test_leasing import SHORT_S, wait_until_expired


def plan(torch: str = "", **options: Any) -> FleetPlan:
    return FleetPlan(new_uid(), "planner", {"torch": torch} if torch else {}, options)


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
@pytest.mark.few(1)
def test_a_plan_after_an_upgrade_supersedes_the_jobs_that_nobody_can_do_any_more(fleet: Fleet) -> None:
    old, new = plan("2.11", regime="cold"), plan("2.12", regime="cold")
    assert fleet.queue.add(old, [NewJob(GPU, problems(1)), NewJob(GPU, problems(2, 3))]) == Added(2, 3, 0)
    lease = fleet.takes(fleet.joins())
    assert fleet.queue.add(new, [NewJob(GPU, problems(1, 2))]) == Added(1, 2, 0)
    assert [list(job.problems) for job, _ in fleet.queue.waiting()] == [problems(3), problems(1, 2)]
    assert fleet.queue.complete(lease.fence)  # who works on a job goes on with it
    assert fleet.queue.add(plan("2.12", regime="cold"), [NewJob(GPU, problems(2, 3))]) == Added(1, 1, 1)
    assert [list(job.problems) for job, _ in fleet.queue.waiting()] == [problems(1, 2), problems(3)]
    assert list(fleet.queue.open_plans([GPU]).values()) == [{"torch": "2.12"}] * 2
    (counts,) = fleet.queue.status().jobs
    assert (counts.queued, counts.done, counts.failed) == (2, 1, 0)
    with fleet.queue._opened.reading() as session:
        told = session.execute(select(FleetJobRow.message).where(FleetJobRow.state == "failed")).scalars().all()
    assert len(told) == 1
    assert told[0].startswith("superseded by plan")


def test_a_job_whose_worker_died_before_an_upgrade_is_superseded(fleet: Fleet) -> None:
    fleet.queue.add(plan("2.11"), [NewJob(GPU, problems(1))])
    lost = fleet.takes(fleet.joins(), SHORT_S)
    wait_until_expired(fleet.queue)
    assert fleet.queue.add(plan("2.12"), [NewJob(GPU, problems(1))]) == Added(1, 1, 0)
    assert fleet.takes(fleet.joins("node2")).fence.job != lost.fence.job
    assert not fleet.queue.complete(lost.fence)
    assert [failure.outcome for failure in fleet.queue.status().failures] == ["expired"]


def test_open_jobs_of_another_regime_or_that_tune_nothing_again_hold_no_problem_back(fleet: Fleet) -> None:
    jobs = [NewJob(GPU, problems(1))]
    kinds: list[dict[str, Any]] = [{"regime": "cold"}, {"regime": "hot"}, {"regime": "cold", "retune": True}]
    assert [fleet.queue.add(plan("2.11", **kind), jobs).jobs for kind in kinds] == [1, 1, 1]
    assert [fleet.queue.add(plan("2.11", **kind), jobs).already for kind in kinds] == [1, 1, 1]
    assert fleet.queue.add(plan("2.12", regime="hot"), jobs).jobs == 1
    assert [options for _, options in fleet.queue.waiting()] == [kinds[0], kinds[2], {"regime": "hot"}]


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
        assert queue.calibrations("H200", {"torch": "2.11"}, ["copy"]) == {"GPU-1": {"copy": 10.0}}


def test_where_there_is_no_database_there_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(MissingDatabaseError):
        JobQueue.open(tmp_path / "none.db", create=False, migrate=False)

"""A worker in this process: it tunes what it leases, refuses what it may not do, and says why a job failed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from registry.device import Device
from registry.errors import FleetVersionError
from registry.fleet.heartbeat import Heartbeat
from registry.fleet.worker import LeasingWorker, WorkOptions
from tuning_db import JobQueue, Store
from tuning_db.queue.entries import FleetPlan, NewJob, QueuedProblem

from ..tuning_db.queue.conftest import Fleet, problems
from ..tuning_db.queue.test_leasing import wait_until_expired
from .conftest import NAME, queue_squares, with_plugin

CPU = Device.of("cpu")


def worker(queue: JobQueue, told: list[str], **options: Any) -> LeasingWorker:
    return LeasingWorker(queue, queue.url, CPU, with_plugin(), WorkOptions(**options), told.append)


@pytest.mark.usefixtures("few_blocks", "own_lock")
def test_a_worker_tunes_every_job_and_leaves_when_none_is_left(file_queue: JobQueue) -> None:
    queue_squares(file_queue, [256, 512], job_size=2)
    told: list[str] = []
    summary = worker(file_queue, told).run()
    assert (summary.done, summary.fault) == (1, ""), told
    assert "attempt 1 of 3" in told[0]
    assert "2 decided" in told[-1]
    status = file_queue.status()
    assert [(one.done, one.failed, one.decided) for one in status.jobs] == [(1, 0, 2)]
    assert [(one.state, one.ended, one.done) for one in status.workers] == [("left", True, 1)]
    with Store.open(file_queue.url) as store:
        assert {one.problem.dims["n"] for one in store.winners()} == {256, 512}
        (run,) = store.runs()
        assert {"job", "token"} <= run.details.keys()
    queue_squares(file_queue, [256, 512], job_size=2)
    assert worker(file_queue, told).run().done == 1  # the winners are known: nothing is decided again
    with Store.open(file_queue.url) as store:
        assert store.statistics().decisions == 2


def test_a_worker_with_other_versions_refuses_and_names_them(file_queue: JobQueue) -> None:
    job = NewJob("cpu", [QueuedProblem("square", {"n": 4, "dtype": "float32"})])
    file_queue.add(FleetPlan("plan", "planner", {"torch": "1.13.0", "op square": "1"}, {}), [job])
    told: list[str] = []
    with pytest.raises(FleetVersionError, match=r"the fleet works with 1\.13\.0"):
        worker(file_queue, told).run()
    status = file_queue.status()
    (left,) = status.workers
    assert (left.state, left.ended, status.jobs[0].queued) == ("refused", True, 1)
    assert "torch is" in left.message


def test_a_job_that_cannot_be_done_fails_with_its_reason(file_queue: JobQueue) -> None:
    stored = {"seconds": None, "trials": 1, "sampler": "registry", "implementations": ["gone.any"], "retune": False}
    job = NewJob("cpu", [QueuedProblem("square", {"n": 4, "dtype": "float32"})], most_attempts=1)
    file_queue.add(FleetPlan("plan", "planner", {}, {**stored, "regime": "cold"}), [job])
    told: list[str] = []
    assert worker(file_queue, told).run().done == 0
    status = file_queue.status()
    assert status.failed == 1
    assert "gone.any" in status.failures[0].message


def test_a_worker_that_was_told_to_leave_takes_no_job(file_queue: JobQueue) -> None:
    queue_squares(file_queue, [256])
    one = worker(file_queue, [])
    one.leave()
    assert one.run().ends == {}
    assert file_queue.status().jobs[0].queued == 1


def test_a_heartbeat_keeps_a_lease_and_tells_when_it_is_lost(file_queue: JobQueue) -> None:
    fleet = Fleet(file_queue)
    fleet.plan(problems(1))
    lease, lost = fleet.takes(fleet.joins(), 0.4), threading.Event()
    with Heartbeat(file_queue, lease.fence, lease.worker, 0.4, lost.set) as heart:
        wait_until_expired(file_queue, 0.6)
        assert not heart.lost
        assert fleet.lease(fleet.joins("node2")) is None
        assert file_queue.hand_back(lease.fence, "by somebody else")
        assert lost.wait(10)
        assert heart.lost


def test_a_database_out_of_reach_for_longer_than_the_lease_loses_it(tmp_path: Path) -> None:
    queue = JobQueue.open(tmp_path / "tuning.db")
    fleet = Fleet(queue)
    fleet.plan(problems(1))
    lease, lost = fleet.takes(fleet.joins(), 0.3), threading.Event()
    queue.close()
    with Heartbeat(queue, lease.fence, lease.worker, 0.3, lost.set):
        assert lost.wait(10)


def test_the_implementation_that_is_tuned_is_the_plugins() -> None:
    assert NAME in [one.name for one in with_plugin().implementations("square")]

"""Leases: each job has one holder at a time, who keeps it by renewing, and loses it for good when it has expired."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tuning_db import JobQueue

from .conftest import BOTH, GPU, Fleet, problems

SHORT_S = 0.3


def wait_until_expired(queue: JobQueue, seconds: float = SHORT_S) -> None:
    until = queue.seconds() + seconds
    while queue.seconds() <= until:
        time.sleep(0.02)


@BOTH
@pytest.mark.few(1)
def test_a_job_has_one_holder_until_it_is_complete(fleet: Fleet) -> None:
    fleet.plan(problems(1, 2))
    one, other = fleet.joins("node1"), fleet.joins("node2")
    lease = fleet.takes(one)
    assert (lease.op, lease.device, lease.attempt, lease.options) == ("softmax", GPU, 1, {"trials": 8})
    assert list(lease.problems) == problems(1, 2)
    assert fleet.lease(other) is None
    assert fleet.queue.complete(lease.fence, "2 decided")
    assert fleet.lease(other) is None
    assert fleet.queue.status().open == 0


def test_the_most_urgent_job_comes_first_then_the_oldest(fleet: Fleet) -> None:
    fleet.plan(problems(1), priority=0)
    fleet.plan(problems(2), priority=5)
    fleet.plan(problems(3), priority=5)
    assert [job.problems[0].dims["rows"] for job, _ in fleet.queue.waiting()] == [2, 3, 1]
    assert fleet.queue.waiting()[0][1] == {"trials": 8}
    order = [fleet.takes(fleet.joins(f"node{number}")).problems[0].dims["rows"] for number in range(3)]
    assert order == [2, 3, 1]


def test_a_job_goes_to_the_model_of_device_that_it_is_for(fleet: Fleet) -> None:
    fleet.plan(problems(1), device="NVIDIA H100")
    assert fleet.lease(fleet.joins(device=GPU)) is None
    assert fleet.takes(fleet.joins(device="NVIDIA H100")).device == "NVIDIA H100"


@BOTH
def test_an_expired_lease_can_be_neither_renewed_nor_completed(fleet: Fleet) -> None:
    fleet.plan(problems(1))
    one, other = fleet.joins("node1"), fleet.joins("node2")
    lost = fleet.takes(one, SHORT_S)
    wait_until_expired(fleet.queue)
    for end in (fleet.queue.complete, fleet.queue.fail, fleet.queue.hand_back):
        assert not end(lost.fence, "too late")
    assert not fleet.queue.renew(lost.fence, 60)
    again = fleet.takes(other)
    assert (again.fence.job, again.attempt) == (lost.fence.job, 2)
    assert again.fence.token > lost.fence.token
    assert not fleet.queue.complete(lost.fence)
    assert fleet.queue.complete(again.fence)
    assert [failure.outcome for failure in fleet.queue.status().failures] == ["expired"]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.few(1)
def test_a_job_whose_lease_has_expired_waits_for_a_worker(fleet: Fleet, attempts: int) -> None:
    fleet.plan(problems(1), most_attempts=attempts)
    fleet.takes(fleet.joins(), SHORT_S)
    assert fleet.queue.waiting() == []
    wait_until_expired(fleet.queue)
    assert [list(job.problems) for job, _ in fleet.queue.waiting()] == [problems(1)]
    assert (fleet.lease(fleet.joins("node2")) is None) == (attempts == 1)
    assert fleet.queue.waiting() == []


def test_a_lease_that_is_renewed_does_not_expire(fleet: Fleet) -> None:
    fleet.plan(problems(1))
    one, other = fleet.joins("node1"), fleet.joins("node2")
    lease = fleet.takes(one, SHORT_S)
    assert fleet.queue.renew(lease.fence, 60)
    wait_until_expired(fleet.queue)
    assert fleet.lease(other) is None
    assert fleet.queue.complete(lease.fence)


def test_what_was_answered_and_not_heard_may_be_asked_again(fleet: Fleet) -> None:
    fleet.plan(problems(1), problems(2), problems(3))
    one = fleet.joins()
    lease = fleet.takes(one)
    assert fleet.takes(one) == lease
    assert [fleet.queue.complete(lease.fence) for _ in range(2)] == [True, True]
    second = fleet.takes(one)
    assert second.fence.job != lease.fence.job
    assert [fleet.queue.hand_back(second.fence, "shut down") for _ in range(2)] == [True, True]
    assert not fleet.queue.complete(second.fence)
    assert fleet.takes(one).attempt == 1


@pytest.mark.thorough
def test_a_lease_that_is_handed_out_again_lasts_as_long_as_a_new_one(fleet: Fleet) -> None:
    fleet.plan(problems(1))
    one = fleet.joins()
    lease = fleet.takes(one, SHORT_S)
    assert fleet.takes(one, 60) == lease
    wait_until_expired(fleet.queue)
    assert fleet.queue.complete(lease.fence)


def test_a_job_that_fails_waits_and_is_given_up_after_its_last_attempt(fleet: Fleet) -> None:
    fleet.plan(problems(1), most_attempts=2)
    one = fleet.joins()
    assert fleet.queue.fail(fleet.takes(one).fence, "no candidate was right")
    assert fleet.lease(one) is None  # it is not tried again at once
    assert fleet.queue.status().open == 1
    _forget_the_wait(fleet.queue)
    assert fleet.queue.fail(fleet.takes(one).fence, "once more")
    status = fleet.queue.status()
    assert (status.open, status.failed) == (0, 1)
    assert [failure.message for failure in status.failures] == ["once more", "no candidate was right"]


def test_a_job_that_kills_its_workers_is_given_up(fleet: Fleet) -> None:
    fleet.plan(problems(1), most_attempts=2)
    for number in range(2):
        fleet.takes(fleet.joins(f"node{number}"), SHORT_S)
        wait_until_expired(fleet.queue)
    assert fleet.lease(fleet.joins("node3")) is None
    status = fleet.queue.status()
    assert (status.open, status.failed) == (0, 1)
    assert [failure.outcome for failure in status.failures] == ["expired", "expired"]


def test_a_workers_own_clock_does_not_count(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.plan(problems(1))
    one, other = fleet.joins("node1"), fleet.joins("node2")
    lease = fleet.takes(one, 120)
    real = time.time
    for hour in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda hour=hour: real() + hour)
        assert fleet.lease(other) is None
        assert fleet.queue.renew(lease.fence, 120)
        assert all(abs(each.seen_s) < 60 for each in fleet.queue.status().workers)
    assert fleet.queue.complete(lease.fence)


@BOTH
@pytest.mark.few(1)
def test_many_workers_at_once_get_each_job_once(fleet: Fleet) -> None:
    fleet.plan(*(problems(rows) for rows in range(1, 31)))
    workers = [fleet.joins(f"node{number}") for number in range(6)]
    began = threading.Barrier(len(workers))

    def work(number: int) -> list[Any]:
        began.wait()
        found = []
        while (lease := fleet.lease(workers[number])) is not None:
            found.append(lease.problems[0].dims["rows"])
            assert fleet.queue.complete(lease.fence)
        return found

    with ThreadPoolExecutor(len(workers)) as pool:
        taken = list(pool.map(work, range(len(workers))))
    assert sorted(rows for each in taken for rows in each) == list(range(1, 31))
    status = fleet.queue.status()
    assert (status.jobs[0].done, status.open, status.failures) == (30, 0, [])


def test_a_worker_leases_only_from_plans_whose_versions_it_has(fleet: Fleet) -> None:
    fleet.plan(problems(1))
    one = fleet.joins()
    (number,) = fleet.queue.open_plans([GPU])
    assert fleet.queue.open_plans([GPU]) == {number: {"torch": "2.11"}}
    assert fleet.queue.lease(one.uid, [GPU], [], 60) is None
    assert fleet.queue.lease(one.uid, [GPU], [number], 60) is not None


def _forget_the_wait(queue: JobQueue) -> None:
    from sqlalchemy import update

    from tuning_db.queue.tables import FleetJobRow

    with queue._opened.writing() as session:
        session.execute(update(FleetJobRow).values(after=0.0))

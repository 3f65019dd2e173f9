"""Status: what a fleet's user is told of workers that are there, have left, or were killed."""

from __future__ import annotations

from sqlalchemy import update

from tuning_db.queue.tables import FleetWorkerRow

from .conftest import GPU, Fleet, problems

DAY_S = 86_400.0


def test_workers_that_were_last_seen_a_day_ago_are_not_listed(fleet: Fleet) -> None:
    """A worker that was killed has no end, and would be listed for ever by that."""
    there, killed, left = (fleet.joins(f"node{number}") for number in range(3))
    fleet.queue.beat(left.uid, "left", ended=True)
    assert {one.uid for one in fleet.queue.status().workers} == {there.uid, killed.uid, left.uid}
    long_ago = {"seen": fleet.queue.seconds() - DAY_S - 60}
    with fleet.queue._opened.writing() as session:
        session.execute(update(FleetWorkerRow).where(FleetWorkerRow.id.in_([killed.uid, left.uid])).values(long_ago))
    assert [one.uid for one in fleet.queue.status().workers] == [there.uid]


def test_open_jobs_are_those_that_wait_or_are_worked_on(fleet: Fleet) -> None:
    fleet.plan(problems(1), problems(2), problems(3))
    fleet.plan(problems(1), device="NVIDIA H100")
    assert [fleet.queue.open_jobs(models) for models in ([], [GPU], ["NVIDIA H100", GPU], ["cpu"])] == [4, 3, 4, 0]
    one = fleet.joins()
    assert fleet.queue.complete(fleet.takes(one).fence)
    fleet.takes(one)
    assert fleet.queue.open_jobs([GPU]) == 2

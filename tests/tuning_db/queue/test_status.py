"""Status: what a fleet's user is told of workers that are there, have left, or were killed."""

from __future__ import annotations

from sqlalchemy import update

from tuning_db.queue.tables import FleetWorkerRow

from .conftest import Fleet

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

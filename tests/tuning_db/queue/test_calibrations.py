"""Calibrations: the newest of each device counts, and only those under one software are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text, update

from tuning_db import JobQueue
from tuning_db.queue.calibrations import latest_rows
from tuning_db.queue.tables import FleetCalibrationRow

from .conftest import GPU, worker

ENTRIES = ("copy", "linear")


def test_the_newest_times_of_each_device_under_one_software_are_compared(queue: JobQueue) -> None:
    one, other, elsewhere = worker("node1"), worker("node2"), worker("node3", "NVIDIA H100")
    upgraded = replace(worker("node4"), software={"torch": "2.12"})
    for each in (one, other, elsewhere, upgraded):
        queue.register(each)
        queue.calibrated(each, {"copy": 10.0, "linear": 20.0})
    queue.calibrated(one, {"copy": 11.0})
    assert queue.calibrations(GPU, one.software, ENTRIES) == {
        one.identity: {"copy": 11.0, "linear": 20.0},
        other.identity: {"copy": 10.0, "linear": 20.0},
    }
    assert queue.calibrations(GPU, upgraded.software, ENTRIES) == {upgraded.identity: {"copy": 10.0, "linear": 20.0}}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_is_a_month_old_is_left_out_and_the_rest_is_read_by_its_index(queue: JobQueue) -> None:
    one, gone = worker("node1"), worker("node2")
    for each in (one, gone):
        queue.register(each)
        queue.calibrated(each, {"copy": 10.0, "square": 5.0})
    with queue._opened.writing() as session:
        old = update(FleetCalibrationRow).where(FleetCalibrationRow.identity == gone.identity)
        session.execute(old.values(at=FleetCalibrationRow.at - 31 * 86_400))
    assert queue.calibrations(GPU, one.software, ["copy"]) == {one.identity: {"copy": 10.0}}
    with queue._opened.reading() as session:
        query = latest_rows(GPU, ENTRIES).compile(session.get_bind(), compile_kwargs={"literal_binds": True})
        steps = [step[-1] for step in session.execute(text(f"EXPLAIN QUERY PLAN {query}"))]
    assert any("USING INDEX fleet_calibration_of_device (device=? AND entry=? AND at>?)" in step for step in steps)

"""Calibrations: the newest of each device counts, and only those under one software are compared."""

from __future__ import annotations

from dataclasses import replace

from tuning_db import JobQueue

from .conftest import GPU, worker


def test_the_newest_times_of_each_device_under_one_software_are_compared(queue: JobQueue) -> None:
    one, other, elsewhere = worker("node1"), worker("node2"), worker("node3", "NVIDIA H100")
    upgraded = replace(worker("node4"), software={"torch": "2.12"})
    for each in (one, other, elsewhere, upgraded):
        queue.register(each)
        queue.calibrated(each, {"copy": 10.0, "linear": 20.0})
    queue.calibrated(one, {"copy": 11.0})
    assert queue.calibrations(GPU, one.software) == {
        one.identity: {"copy": 11.0, "linear": 20.0},
        other.identity: {"copy": 10.0, "linear": 20.0},
    }
    assert queue.calibrations(GPU, upgraded.software) == {upgraded.identity: {"copy": 10.0, "linear": 20.0}}

"""What is made of the driver's answers, by a driver that answers as it is told. tests/gpu asks a real one."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from registry.device import Device
from registry.tuner.measure.clocks import Clocks
from registry.tuner.measure.nvml import Gpu

OURS, THEIRS = os.getpid(), 4711


class Driver:
    """NVML as far as processes go: at each question the next list of process ids, or none of it (None)."""

    class NVMLError(Exception):
        pass

    def __init__(self, *answers: Iterable[int] | None) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.asked = 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802  (NVML's name)
        assert handle == "device"
        self.asked += 1
        answer = next(self._answers)
        if answer is None:
            raise self.NVMLError("not supported")
        return [SimpleNamespace(pid=pid) for pid in answer]


def told(*answers: Iterable[int] | None) -> tuple[Gpu, Driver]:
    driver = Driver(*answers)
    return Gpu(driver, "device"), driver


def test_a_process_is_waited_for_as_long_as_the_driver_lists_it() -> None:
    gpu, driver = told([OURS, THEIRS], [OURS, THEIRS], [THEIRS], [OURS])
    assert gpu.wait_until_gone(THEIRS, seconds=60)
    assert driver.asked == 4


def test_who_is_not_listed_is_not_waited_for() -> None:
    gpu, driver = told([OURS])
    assert gpu.wait_until_gone(THEIRS, seconds=60)
    assert driver.asked == 1


def test_who_stays_is_waited_for_no_longer_than_was_said() -> None:
    gpu, driver = told([THEIRS])
    began = time.monotonic()
    assert not gpu.wait_until_gone(THEIRS, seconds=0.1)
    assert time.monotonic() - began >= 0.1
    assert driver.asked > 1


def test_nobody_is_waited_for_where_nobody_can_say() -> None:
    gpu, driver = told(None)
    assert gpu.wait_until_gone(THEIRS, seconds=60)
    assert driver.asked == 1


@pytest.mark.parametrize(
    ("listed", "others"),
    [
        ([OURS], frozenset()),
        ([OURS, THEIRS], frozenset({THEIRS})),
        ([], frozenset()),
        # we are on the device and not among them: they are numbered as another container sees them
        ([THEIRS], None),
        (None, None),
    ],
)
def test_who_else_is_on_the_device_is_known_only_where_the_driver_numbers_processes_as_we_do(
    listed: list[int] | None, others: frozenset[int] | None
) -> None:
    gpu, _ = told(listed)
    assert gpu.others({OURS}) == others
    assert Clocks(Device.of("cpu"), gpu).contended() is bool(others)

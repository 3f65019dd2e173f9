"""The processes of a run: what is left of them, and when."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from registry.device import Device
from registry.tuner.jobs import BlockJob, Entrant, TimedBlock
from registry.tuner.limits import Limits
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.workers.crew import Crew
from registry.tuner.workers.device_client import DeviceWorker

CPU = Device.of("cpu")
JOB = BlockJob(
    0,
    "square",
    {"n": 1001, "dtype": "float32"},
    (Entrant("torch.native", {}),),
    dict(TimingProtocol.of(CPU).details),
    0,
    2,
)

if sys.platform != "linux":
    pytest.skip("processes are looked up as Linux shows them", allow_module_level=True)


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew([CPU], [], Limits(), pytest.fail)
    crew.start_workers()
    yield crew
    crew.close()


def worker_of(crew: Crew) -> DeviceWorker:
    (device,) = crew.devices
    assert device.worker is not None
    return device.worker


def pid_of(crew: Crew) -> int:
    return worker_of(crew).pid


def lasts(pid: int) -> bool:
    """Whether there is such a process, at least for ten seconds more."""
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return Path(f"/proc/{pid}").exists()


def test_a_dismissed_worker_ends_by_itself_and_another_takes_its_place(crew: Crew) -> None:
    (answer,) = crew.run_blocks([JOB])
    assert isinstance(answer, TimedBlock)
    first = pid_of(crew)
    crew.dismiss_workers()
    assert not lasts(first), "nobody has closed it yet"
    crew.replace_workers(last=True)
    assert pid_of(crew) != first
    (answer,) = crew.run_blocks([replace(JOB, seed=1)])
    assert isinstance(answer, TimedBlock)
    assert len(answer.times[0]) == JOB.rounds


class Driver:
    """Tells the part of the time in which a kernel ran, as NVML does."""

    def __init__(self, *percents: int | None) -> None:
        self.percents = list(percents)

    def utilisation(self) -> int | None:
        return self.percents.pop(0)


def test_how_long_kernels_ran_is_weighed_by_time_and_counts_from_when_all_had_started(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = crew.devices
    now = [device._began]
    monkeypatch.setattr("registry.tuner.workers.tuned_device.time.monotonic", lambda: now[0])
    monkeypatch.setattr(device, "_gpu", Driver(99, 10, None, 60, 20))
    assert device.kernel_share(10) is None
    for seconds in (9.5, 10.0, 10.05, 10.3, 10.5, 11.0):
        now[0] = device._began + seconds
        device.look()
    # at 10.05 it was too early to ask again, at 10.3 the driver said nothing
    assert device.kernel_share(10) == pytest.approx((0.5 * 0.6 + 0.5 * 0.2) / 1.0)
    assert device.kernel_share(20) is None


def test_what_the_driver_has_not_seen_counts_neither_as_kernels_nor_as_none(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = crew.devices
    now = [device._began]
    monkeypatch.setattr("registry.tuner.workers.tuned_device.time.monotonic", lambda: now[0])
    monkeypatch.setattr(device, "_gpu", Driver(0, 100, 80, 100, 40))
    shares = []
    for seconds in (0.0, 10.0, 10.5, 20.5, 21.25):
        now[0] = device._began + seconds
        device.look()
        shares.append(device.kernel_share(0))
    assert shares[:2] == [None, None]
    assert shares[2:] == pytest.approx([0.8, 0.8, (0.5 * 0.8 + 0.75 * 0.4) / 1.25])


@pytest.mark.parametrize("ends", ["replace_workers", "dismiss_workers"])
def test_the_device_is_looked_at_while_the_worker_is_still_there(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    told: list[str] = []
    monkeypatch.setattr(crew.devices[0], "look", lambda: told.append("look"))
    for name in ("dismiss", "close"):
        monkeypatch.setattr(worker_of(crew), name, _telling(told, getattr(worker_of(crew), name)))
    {"replace_workers": lambda: crew.replace_workers(last=True)}.get(ends, getattr(crew, ends))()
    assert told[0] == "look"
    assert len(told) > 1


def _telling(told: list[str], act: Callable[[], None]) -> Callable[[], None]:
    def telling() -> None:
        told.append("end")
        act()

    return telling


def test_a_crew_is_closed_with_its_worker_dismissed_or_not_yet_started(crew: Crew) -> None:
    pid = pid_of(crew)
    crew.dismiss_workers()
    crew.close()
    assert not Path(f"/proc/{pid}").exists()
    assert crew.devices[0].worker is None
    crew.dismiss_workers()

"""Calibration: a device slower than its kind is found and its results set aside, and differences widen intervals."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from sqlalchemy import update

from registry.device import Device
from registry.fleet.calibration import CALIBRATION, KindOfDevice, measure
from registry.fleet.job_run import JobEnd, JobOutcome
from registry.fleet.worker import LeasingWorker, WorkOptions
from tuning_db import JobQueue, Store
from tuning_db.queue.entries import FleetPlan, NewJob, QueuedProblem
from tuning_db.queue.tables import FleetJobRow

from ..tuning_db.queue.conftest import worker as another
from .conftest import queue_squares, with_plugin

CPU = Device.of("cpu")
ENTRIES = {"copy": 120.0, "square": 121.0, "softmax": 60.0, "linear": 200.0}


def fleet_of(count: int, spread: float, seed: int = 1, **slower: float) -> dict[str, dict[str, float]]:
    """Times of ``count`` devices that differ by a normal ``spread``; GPU0 is slower by the factors given by entry."""
    drawn = random.Random(seed)
    times = {
        f"GPU{number}": {name: us * (1 + drawn.gauss(0, spread)) for name, us in ENTRIES.items()}
        for number in range(count)
    }
    for name, factor in slower.items():
        times["GPU0"][name] *= factor
    return times


@pytest.mark.parametrize("seed", range(20))
def test_devices_that_differ_as_usual_are_not_set_aside(seed: int) -> None:
    assert KindOfDevice.of(fleet_of(8, 0.005, seed)).slow == frozenset()


@pytest.mark.parametrize("slower", [{"linear": 1.12}, {"copy": 1.3, "square": 1.3}, dict.fromkeys(ENTRIES, 1.08)])
def test_a_device_that_is_slower_than_its_kind_in_anything_is_set_aside(slower: dict[str, float]) -> None:
    kind = KindOfDevice.of(fleet_of(8, 0.005, **slower))
    assert kind.slow == {"GPU0"}
    assert kind.slower["GPU0"] == pytest.approx(max(slower.values()) - 1, abs=0.02)
    assert "GPU0 is" in kind.fault("GPU0")
    assert kind.fault("GPU1") == ""


def test_of_two_devices_the_faster_one_is_the_kind_and_one_alone_is_never_slow() -> None:
    assert KindOfDevice.of(fleet_of(2, 0.0, linear=1.2)).slow == {"GPU0"}
    assert KindOfDevice.of(fleet_of(1, 0.0, linear=1.2)).slow == frozenset()
    assert KindOfDevice.of({}).devices == 0


def test_a_noisy_kind_has_a_higher_limit() -> None:
    assert KindOfDevice.of(fleet_of(16, 0.04, linear=1.08)).slow == frozenset()


def test_the_variance_is_that_of_a_ratio_between_devices() -> None:
    spread = 0.01
    found = [KindOfDevice.of(fleet_of(12, spread, seed)).variance for seed in range(40)]
    assert sum(found) / len(found) == pytest.approx(2 * spread**2, rel=0.15)
    equal = {name: dict.fromkeys(ENTRIES, 10.0) for name in "abcd"}
    assert KindOfDevice.of(equal).variance == 0.0
    # a device that is slower in everything alike changes no ratio
    equal["a"] = dict.fromkeys(ENTRIES, 10.2)
    assert KindOfDevice.of(equal).variance == pytest.approx(0.0, abs=1e-12)


@pytest.mark.thorough
def test_every_entry_is_timed_on_this_device() -> None:
    told: list[str] = []
    times = measure(CPU, (), told.append)
    assert times.keys() == {"copy", *CALIBRATION["cpu"]}, told
    assert all(us > 0 for us in times.values())


def fast_kind(queue: JobQueue) -> None:
    """Three other devices of this model, which do everything in no time."""
    for number in range(3):
        one = replace(another(f"node{number}", CPU.name), software=CPU.software())
        queue.register(one)
        queue.calibrated(one, dict.fromkeys(("copy", *CALIBRATION["cpu"]), 1e-3))


@pytest.mark.thorough
def test_a_worker_on_a_slow_device_takes_no_job(file_queue: JobQueue) -> None:
    queue_squares(file_queue, [256])
    fast_kind(file_queue)
    summary = LeasingWorker(
        file_queue, file_queue.url, CPU, with_plugin(), WorkOptions(calibrate=True), lambda _: None
    ).run()
    assert "slower than the other 3 of its model" in summary.fault
    assert summary.ends == {}
    assert file_queue.status().jobs[0].queued == 1
    assert file_queue.status().workers[0].state == "set aside"


@pytest.mark.thorough
@pytest.mark.usefixtures("few_blocks")
def test_what_a_device_decided_while_it_became_slow_is_set_aside(file_queue: JobQueue) -> None:
    queue_squares(file_queue, [256], attempts=1)

    def tell(line: str) -> None:
        if "attempt 1" in line:
            fast_kind(file_queue)

    summary = LeasingWorker(file_queue, file_queue.url, CPU, with_plugin(), WorkOptions(calibrate=True), tell).run()
    assert summary.ends == {JobEnd.ASIDE: 1}
    status = file_queue.status()
    assert (status.jobs[0].queued, status.jobs[0].decided) == (1, 0)
    assert [one.outcome for one in status.failures] == ["set aside"]
    with Store.open(file_queue.url) as store:
        assert store.winners() == []
        assert store.trials()


def slow_times(*_: object) -> dict[str, float]:
    return dict.fromkeys(("copy", *CALIBRATION["cpu"]), 1.0)


@pytest.mark.usefixtures("few_blocks", "own_lock")
@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_a_slow_or_broken_device_is_set_aside_although_its_lease_is_lost(
    file_queue: JobQueue, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    queue_squares(file_queue, [256])
    answers = iter([slow_times(), {} if broken else slow_times()])

    def timed(*_: object) -> dict[str, float]:
        if file_queue.status().jobs[0].decided:
            fast_kind(file_queue)
            with file_queue._opened.writing() as session:
                session.execute(update(FleetJobRow).values(lease_until=0.0))
        return next(answers)

    monkeypatch.setattr("registry.fleet.worker.measure", timed)
    summary = worker_with(file_queue).run()
    assert summary.ends == {JobEnd.ASIDE: 1}
    assert ("no entry of the calibration could be timed" if broken else "slower than the other 3") in summary.fault
    assert file_queue.status().jobs[0].decided == 0
    with Store.open(file_queue.url) as store:
        assert store.winners() == []
        assert store.trials()


def test_a_device_is_compared_with_its_kind_after_a_job_that_failed(
    file_queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"seconds": None, "trials": 1, "sampler": "registry", "implementations": ["gone.any"], "retune": False}
    job = NewJob("cpu", [QueuedProblem("square", {"n": 4, "dtype": "float32"})])
    file_queue.add(FleetPlan("plan", "planner", {}, {**stored, "regime": "cold"}), [job])
    answers = iter([slow_times(), {}])
    monkeypatch.setattr("registry.fleet.worker.measure", lambda *_: next(answers))
    summary = worker_with(file_queue).run()
    assert summary.ends == {JobEnd.ASIDE: 1}
    assert "could be timed" in summary.fault
    assert [one.outcome for one in file_queue.status().failures] == ["set aside"]


@pytest.mark.thorough
def test_a_worker_on_an_unfit_machine_ends_although_its_lease_is_lost(
    file_queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_squares(file_queue, [256])

    def run(*_: object) -> JobOutcome:
        with file_queue._opened.writing() as session:
            session.execute(update(FleetJobRow).values(lease_until=0.0))
        return JobOutcome(JobEnd.UNFIT, "the disk is full")

    monkeypatch.setattr("registry.fleet.worker.run_job", run)
    summary = worker_with(file_queue, calibrate=False).run()
    assert (summary.ends, summary.fault) == ({JobEnd.UNFIT: 1}, "the disk is full")


def worker_with(queue: JobQueue, calibrate: bool = True) -> LeasingWorker:
    return LeasingWorker(queue, queue.url, CPU, with_plugin(), WorkOptions(calibrate=calibrate), lambda _: None)

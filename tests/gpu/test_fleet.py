"""A fleet of one GPU: planned by its model, worked on, compared with its kind, and tuned as one run does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.fleet.calibration import CALIBRATION, measure
from registry.fleet.job_run import JobEnd
from registry.fleet.on_ray.ahead_process import AheadProcess
from registry.fleet.on_ray.artifact_files import digest_of, install
from registry.fleet.on_ray.compiling_ahead import variants_ahead
from registry.fleet.on_ray.described_device import DescribedDevice
from registry.fleet.planner import plan_fleet
from registry.fleet.worker import LeasingWorker, WorkOptions
from registry.problem import Problem
from registry.tuner.limits import Budget
from registry.tuner.measure.nvml import identity_of
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tuning_db import JobQueue, Store
from tuning_db.queue.entries import FleetWorker
from tuning_db.records import new_uid

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

GPU = Device.of("cuda:0")
PROBLEMS = [Problem("softmax", {"rows": rows, "cols": 4096, "dtype": "bfloat16"}) for rows in (64, 256)]


def other(queue: JobQueue, number: int, factor: float, times: dict[str, float]) -> None:
    """Another GPU of this model, ``factor`` times as slow as this one."""
    one = FleetWorker(new_uid(), f"node{number}", number, GPU.name, f"GPU-{number}", GPU.software())
    queue.register(one)
    queue.calibrated(one, {name: us * factor for name, us in times.items()})


def work(queue: JobQueue) -> tuple[LeasingWorker, list[str]]:
    told: list[str] = []
    catalog = Catalog()
    options = TuneOptions(Budget(trials=6))
    plan_fleet(queue, PROBLEMS, [GPU.name, "NVIDIA of another kind"], catalog=catalog, options=options)
    worker = LeasingWorker(queue, queue.url, GPU, catalog, WorkOptions(calibrate=True), told.append)
    worker.run()
    return worker, told


def test_every_entry_of_the_calibration_is_timed() -> None:
    told: list[str] = []
    times = measure(GPU, (), told.append)
    assert times.keys() == {"copy", *CALIBRATION["cuda"]}, told
    assert all(us > 0 for us in times.values())


def test_a_gpu_as_fast_as_its_kind_tunes_the_jobs_of_its_model(tmp_path: Path) -> None:
    with JobQueue.open(tmp_path / "tuning.db") as queue:
        times = measure(GPU, (), lambda _: None)
        for number in range(3):
            other(queue, number, 1.0 + 0.002 * number, times)
        worker, told = work(queue)
        assert worker.summary.ends == {JobEnd.DONE: 1}, told
        assert worker.record.identity == identity_of(GPU)
        jobs = {one.device: (one.queued, one.done, one.decided) for one in queue.status().jobs}
        assert jobs == {GPU.name: (0, 1, 2), "NVIDIA of another kind": (1, 0, 0)}
        assert worker.record.identity in queue.calibrations(GPU.name, GPU.software(), CALIBRATION["cuda"])
    with Store.open(tmp_path / "tuning.db") as store:
        assert {one.problem.dims["rows"] for one in store.winners()} == {64, 256}
        assert {trial.details["device"] for trial in store.trials() if trial.status == "ok"} == {identity_of(GPU)}


def test_a_gpu_slower_than_its_kind_takes_no_job(tmp_path: Path) -> None:
    with JobQueue.open(tmp_path / "tuning.db") as queue:
        times = measure(GPU, (), lambda _: None)
        for number in range(3):
            other(queue, number, 0.6, times)
        worker, told = work(queue)
        assert worker.summary.ends == {}, told
        assert "slower than the other 3 of its model" in worker.summary.fault
        assert queue.status().jobs[-1].decided == 0


def test_what_torch_compile_makes_without_the_gpu_is_loaded_by_it_and_right(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, described = PROBLEMS[0], DescribedDevice.here("cuda:0")
    (ahead,) = variants_ahead(problem, catalog, described.device, ["torch.compile"])
    with closing(AheadProcess(described.gpu, ())) as process:  # it sees no GPU
        made = process.compile(ahead, described.device.target)
    assert not made.fault
    cache = tmp_path / "cache"
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(cache))
    assert all(install(path, content, digest_of(content)) for path, content in made.files.items())
    before = {path: path.stat().st_mtime_ns for path in (cache / "inductor").iterdir()}
    options = TuneOptions(Budget(trials=1), implementations=["torch.compile"])
    (result,) = tune([problem], catalog=catalog, device=GPU, database=str(tmp_path / "tuning.db"), options=options)
    assert (result.implementation, result.verdict) == ("torch.compile", "new")
    assert {path: path.stat().st_mtime_ns for path in (cache / "inductor").iterdir()} == before

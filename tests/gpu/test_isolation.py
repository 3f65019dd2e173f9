"""Workers on a GPU: forked ones have a CUDA context of their own, and what dies leaves nothing on the device."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.problem import Value
from registry.tuner import nvml, spawning
from registry.tuner.device_worker import DeviceWorker
from registry.tuner.jobs import Answer, BlockJob, Entrant, Outcome, TrialJob
from registry.tuner.limits import Limits
from registry.tuner.protocol import Protocol

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

FAULTY = Path(__file__).parents[1] / "tuner" / "faulty.py"
DIMS: dict[str, Value] = {"n": 100_001, "dtype": "float32"}
LIMITS = Limits(verify=10, measure=20)

Try = Callable[..., tuple[list[Outcome], DeviceWorker]]


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.best()


@pytest.fixture
def attempt(device: Device) -> Iterator[Try]:
    """Gives faults to one worker, one after another."""
    workers: list[DeviceWorker] = []
    selector = selectors.DefaultSelector()

    def run(*faults: str) -> tuple[list[Outcome], DeviceWorker]:
        answers: list[Outcome] = []

        def answered(job: TrialJob | BlockJob, answer: Answer) -> None:
            assert isinstance(answer, Outcome)
            answers.append(answer)

        worker = DeviceWorker(selector, device, [str(FAULTY)], answered, lambda text: None, LIMITS)
        workers.append(worker)
        for number, fault in enumerate(faults, start=1):
            entrant = Entrant("faulty.any", {"fault": fault, "number": 0})
            worker.submit(TrialJob(number, "square", DIMS, entrant, dict(Protocol.of(device).details), seed=0))
            while len(answers) < number:
                for key, _ in selector.select(0.05):
                    key.data()
                worker.check_deadlines()
        return answers, worker

    with spawning.kept():
        yield run
        for worker in workers:
            worker.close()
    selector.close()


def test_a_worker_is_forked_and_uses_the_device(attempt: Try) -> None:
    (outcome,), worker = attempt("none")
    assert (outcome.status, outcome.message) == ("ok", "")
    assert worker.pid
    assert worker.how == "forked"


def test_faults_on_the_device_are_told_and_leave_no_memory_on_it(attempt: Try, device: Device) -> None:
    gpu = nvml.gpu_of(device)
    if gpu is None:
        pytest.skip("needs nvidia-ml-py")
    (first,), worker = attempt("none")
    assert first.status == "ok"
    worker.close()
    before = gpu.memory_used_bytes() or 0
    faults = ["segfault", "poisons", "hoards", "exit", "abort"] * 3 + ["hangs_device", "none"]
    outcomes, worker = attempt(*faults)
    told = {
        fault: {one.status for one, name in zip(outcomes, faults, strict=True) if name == fault} for fault in faults
    }
    assert told == {
        "segfault": {"crash"},
        "poisons": {"crash"},
        "hoards": {"out_of_memory"},
        "exit": {"crash"},
        "abort": {"crash"},
        "hangs_device": {"timeout"},
        "none": {"ok"},
    }
    worker.close()
    for _ in range(100):
        after = gpu.memory_used_bytes() or 0
        if after <= before + (64 << 20):
            break
        time.sleep(0.1)
    assert after <= before + (64 << 20)


def test_the_driver_tells_clocks_and_processes(device: Device) -> None:
    gpu = nvml.gpu_of(device)
    if gpu is None:
        pytest.skip("needs nvidia-ml-py")
    torch.zeros(1, device=device.torch)
    clocks, most = gpu.clocks(), gpu.most_clocks()
    assert clocks is not None
    assert most is not None
    assert 0 < clocks.sm <= most.sm
    assert isinstance(gpu.throttled(), tuple)
    assert gpu.power_watts() is None or 0 < gpu.power_watts() < 5000  # type: ignore[operator]
    assert gpu.wait_until_gone(2**22 + 1, seconds=1)

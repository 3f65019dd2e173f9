"""Workers on a GPU: forked ones have a CUDA context of their own, and what dies leaves nothing on the device.

KERNEL_REGISTRY_FAULTS sets how many candidates fail one after the other.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.problem import Value
from registry.tuner.jobs import BlockJob, Entrant, JobAnswer, Outcome, TrialJob
from registry.tuner.limits import Limits
from registry.tuner.measure import nvml
from registry.tuner.measure.clocks import Clocks
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.processes import spawning
from registry.tuner.workers.device_client import DeviceWorker

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

FAULTY = Path(__file__).parents[1] / "tuner" / "faulty.py"
DIMS: dict[str, Value] = {"n": 100_001, "dtype": "float32"}
LIMITS = Limits(verify=10, measure=20)
FEW = 16
FAULTS = int(os.environ.get("KERNEL_REGISTRY_FAULTS", FEW))
# a hang costs the whole limit: among hundreds a shorter one, which what fails by itself still keeps
IMPATIENT = LIMITS if FAULTS <= FEW else Limits(verify=4, measure=20)
SLACK_BYTES = 64 << 20

FAILING = ("segfault", "poisons", "hoards", "exit", "abort")
HANGING = ("hangs_device", "sleeps")
HANGS_EVERY = 20
STATUSES = {
    "segfault": "crash",
    "poisons": "crash",
    "hoards": "out_of_memory",
    "exit": "crash",
    "abort": "crash",
    "hangs_device": "timeout",
    "sleeps": "timeout",
    "none": "ok",
}

Try = Callable[..., tuple[list[Outcome], DeviceWorker]]


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.best()


@pytest.fixture
def attempt(device: Device) -> Iterator[Try]:
    """Gives faults to one worker, one after another; returns what became of them, in their order."""
    workers: list[DeviceWorker] = []
    selector = selectors.DefaultSelector()

    def run(*faults: str, limits: Limits = LIMITS) -> tuple[list[Outcome], DeviceWorker]:
        answers: dict[int, Outcome] = {}

        def answered(job: TrialJob | BlockJob, answer: JobAnswer) -> None:
            assert isinstance(answer, Outcome)
            assert job.id not in answers
            answers[job.id] = answer

        worker = DeviceWorker(selector, device, [str(FAULTY)], answered, lambda text: None, limits)
        workers.append(worker)
        left = [trial(device, number, fault) for number, fault in enumerate(faults, start=1)]
        while len(answers) < len(faults):
            while left and worker.wants_more:
                worker.submit(left.pop(0))
            for key, _ in selector.select(0.05):
                key.data()
            worker.check_deadlines()
        return [answers[number] for number in sorted(answers)], worker

    with spawning.kept():
        yield run
        for worker in workers:
            worker.close()
    selector.close()


def trial(device: Device, number: int, fault: str) -> TrialJob:
    entrant = Entrant("faulty.any", {"fault": fault, "number": 0})
    return TrialJob(number, "square", DIMS, entrant, dict(TimingProtocol.of(device).details), seed=0)


def faults_of(count: int) -> list[str]:
    """Each way to fail in turn, and every twentieth a hang."""
    faults = [FAILING[number % len(FAILING)] for number in range(count)]
    for turn, place in enumerate(range(FEW - 1, count, HANGS_EVERY)):
        faults[place] = HANGING[turn % len(HANGING)]
    return faults


def processes_kept() -> set[int]:
    keeper = spawning._keeper().pid
    return set(map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()))


def is_zombie(stat: Path) -> bool:
    """Whether a process is the keeper's or ours, and dead but not reaped."""
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state == "Z" and int(parent) in {spawning._keeper().pid, os.getpid()}


def memory_used(device: Device) -> int:
    """Bytes of the device in use by all processes."""
    free, total = torch.cuda.mem_get_info(device.torch)
    return total - free


def least_memory_used(device: Device, seconds: float, enough: int = 0) -> int:
    """Bytes of the device in use once the driver has freed what dead processes held: the least in so many seconds, or
    the first that is ``enough``."""
    least, until = memory_used(device), time.monotonic() + seconds
    while least > enough and time.monotonic() < until:
        time.sleep(0.1)
        least = min(least, memory_used(device))
    return least


def test_a_worker_is_forked_and_uses_the_device(attempt: Try) -> None:
    (outcome,), worker = attempt("none")
    assert (outcome.status, outcome.message) == ("ok", "")
    assert worker.pid
    assert worker.how == "forked"


@pytest.mark.timeout(max(300, 3 * FAULTS))
def test_faults_on_the_device_are_told_and_leave_nothing_behind(attempt: Try, device: Device) -> None:
    (first,), worker = attempt("none")
    assert first.status == "ok"
    worker.close()
    before, processes = least_memory_used(device, 2.0), processes_kept()
    faults = [*faults_of(FAULTS), "none"]
    outcomes, worker = attempt(*faults, limits=IMPATIENT)
    assert len(outcomes) == len(faults)
    told: defaultdict[str, set[str]] = defaultdict(set)
    for fault, outcome in zip(faults, outcomes, strict=True):
        told[fault].add(outcome.status)
    assert told == {fault: {STATUSES[fault]} for fault in faults}
    worker.close()
    assert processes_kept() <= processes
    assert not [path for path in Path("/proc").glob("[0-9]*/stat") if is_zombie(path)]
    most = before + SLACK_BYTES
    assert least_memory_used(device, 10.0, enough=most) <= most


def test_the_driver_tells_clocks_and_processes(device: Device) -> None:
    gpu = nvml.gpu_of(device)
    if gpu is None:
        pytest.skip("needs nvidia-ml-py")
    torch.zeros(1, device=device.torch)
    clocks = gpu.clocks()
    assert clocks is not None
    assert clocks.sm > 0
    assert isinstance(gpu.throttled(), tuple)


HOLDS = "import sys, torch; torch.zeros(1, device='cuda'); print('held', flush=True); sys.stdin.read()"


def test_a_process_that_holds_the_device_is_seen_and_waited_for_until_it_has_ended(device: Device) -> None:
    gpu = nvml.gpu_of(device)
    if gpu is None:
        pytest.skip("needs nvidia-ml-py")
    torch.zeros(1, device=device.torch)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            others = gpu.others({os.getpid()})
            if others is None:
                pytest.skip("the driver numbers processes otherwise than this container")
            assert child.pid in others
            assert Clocks.of(device).contended()
            assert not gpu.wait_until_gone(child.pid, seconds=0.1)
        finally:
            child.kill()
    assert gpu.wait_until_gone(child.pid, seconds=10)
    assert child.pid not in (gpu.compute_processes() or ())

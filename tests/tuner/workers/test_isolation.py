"""A worker whatever its candidates do: one trial is lost and told, and nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from registry.device import Device
from registry.problem import Value
from registry.tuner.jobs import DeviceJob, Entrant, JobAnswer, Outcome, TrialJob
from registry.tuner.limits import Limits
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.processes import spawning
from registry.tuner.workers import device_client
from registry.tuner.workers.compile_pool import CompilePool
from registry.tuner.workers.device_client import DeviceWorker
from registry.tuner.workers.device_lock import DeviceLock

FAULTY = Path(__file__).parents[1] / "faulty.py"
CPU = Device.of("cpu")
DIMS: dict[str, Value] = {"n": 1001, "dtype": "float32"}
LIMITS = Limits(verify=30, memory_bytes=1 << 30)
HANGS = frozenset({"sleeps", "spins", "deaf", "stops"})

FILES_OF_A_CHILD = 3
"""Socket, log and the pipe that tells its end."""

Try = Callable[..., list[Outcome]]


class ShortForHangs(Limits):
    """Hangs cost their whole limit, so theirs is short; a job beside them may be as slow as the machine is."""

    _fault: Callable[[], str]

    def __init__(self, fault: Callable[[], str]) -> None:
        super().__init__(**vars(LIMITS))
        object.__setattr__(self, "_fault", fault)

    def seconds(self, step: str) -> float:
        return 0.5 if step == "verify" and self._fault() in HANGS else super().seconds(step)


if sys.platform != "linux":
    pytest.skip("the faults are Linux's", allow_module_level=True)


@pytest.fixture(autouse=True)
def _nothing_but_faults(own_lock: None, no_plugins: None) -> None:
    """No worker here need load the plugins in the box, and hundreds are started."""


@pytest.fixture
def attempt() -> Iterator[Try]:
    """Gives faults to one worker, one after another; returns what became of them and keeps its notes."""
    workers: list[DeviceWorker] = []
    selector = selectors.DefaultSelector()

    def run(*faults: str, notes: list[str] | None = None) -> list[Outcome]:
        answers: dict[int, JobAnswer] = {}

        def answered(job: DeviceJob, answer: JobAnswer) -> None:
            assert job.id not in answers
            answers[job.id] = answer

        note = (notes if notes is not None else []).append
        limits = ShortForHangs(lambda: faults[len(answers)])
        worker = DeviceWorker(selector, CPU, [str(FAULTY)], answered, note, limits)
        workers.append(worker)
        left = [job(number, fault) for number, fault in enumerate(faults, start=1)]
        while len(answers) < len(faults):
            while left and worker.wants_more:
                worker.submit(left.pop(0))
            for key, _ in selector.select(0.05):
                key.data()
            worker.check_deadlines()
        found = [answers[number] for number in sorted(answers)]
        return [answer for answer in found if isinstance(answer, Outcome)]

    yield run
    for worker in workers:
        worker.close()
    selector.close()


def job(number: int, fault: str) -> TrialJob:
    details = {**TimingProtocol.of(CPU).details, "warmup_us": 0.0}
    return TrialJob(number, "square", DIMS, Entrant("faulty.any", {"fault": fault, "number": 0}), details, seed=0)


def processes_kept() -> set[int]:
    keeper = spawning._keeper().pid
    return set(map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_left_over(stat: Path) -> bool:
    """Whether a process is one of the keeper's and dead but not reaped."""
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state == "Z" and int(parent) in {spawning._keeper().pid, os.getpid()}


FAULTS = {
    "segfault": ("crash", "SIGSEGV"),
    "abort": ("crash", "SIGABRT"),
    "exit": ("crash", "exit code 0"),
    "killed": ("crash", "SIGKILL"),
    "children": ("crash", "SIGABRT"),
    "system_exit": ("error", "SystemExit: 0"),
    "interrupt": ("error", "KeyboardInterrupt"),
    "generator_exit": ("error", "GeneratorExit"),
    "raises": ("error", "ValueError: not today"),
    "closes": ("crash", "ended"),
    "nonsense": ("crash", "no message"),
    "half": ("crash", "exit code 1"),
    "list": ("crash", "no message"),
    "wrong": ("crash", "belongs to no job"),
    "fills": ("out_of_memory", "its limit is 1.00 GiB"),
    "asks": ("out_of_memory", "allocate"),
    "daemon": ("ok", ""),
    "prints": ("ok", ""),
    "moves": ("ok", ""),
}
"""The status and the words that each fault is told with."""


@pytest.mark.parametrize(
    "faults",
    [
        ("segfault", "exit", "children"),
        ("interrupt", "raises"),
        ("closes", "nonsense", "wrong"),
        ("fills", "asks"),
        ("daemon", "prints", "moves"),
        pytest.param(("abort", "killed"), marks=pytest.mark.thorough),
        pytest.param(("system_exit", "generator_exit"), marks=pytest.mark.thorough),
        pytest.param(("half", "list"), marks=pytest.mark.thorough),
    ],
    ids="-".join,
)
def test_a_fault_costs_one_trial_and_is_told(attempt: Try, faults: tuple[str, ...]) -> None:
    before, *outcomes = attempt("none", *(each for fault in faults for each in (fault, "none")))
    assert [before.status, *(after.status for after in outcomes[1::2])] == ["ok"] * (1 + len(faults))
    for fault, outcome in zip(faults, outcomes[::2], strict=True):
        status, message = FAULTS[fault]
        assert outcome.status == status, fault
        assert message in outcome.message, fault


def test_every_hang_is_tried() -> None:
    cases = test_a_hang_costs_its_limit_and_is_told.pytestmark[0].args[1]
    assert {case.values[0] if hasattr(case, "values") else case for case in cases} == HANGS


def test_every_fault_is_tried() -> None:
    cases = test_a_fault_costs_one_trial_and_is_told.pytestmark[0].args[1]
    tried = [fault for case in cases for fault in (case.values[0] if hasattr(case, "values") else case)]
    assert sorted(tried) == sorted(FAULTS)


# one that sleeps is among the faults in a row
@pytest.mark.parametrize(
    "fault", ["deaf", "stops", *(pytest.param(fault, marks=pytest.mark.thorough) for fault in ("sleeps", "spins"))]
)
def test_a_hang_costs_its_limit_and_is_told(attempt: Try, fault: str) -> None:
    notes: list[str] = []
    hung, after = attempt(fault, "none", notes=notes)
    assert (hung.status, after.status) == ("timeout", "ok")
    assert hung.message == "verify took more than 0.5 s"
    assert notes == ["the worker was replaced: verify took more than 0.5 s"]


def test_faults_in_a_row_leave_nothing_behind(attempt: Try) -> None:
    # what is left is counted exactly: one of each finds a leak as surely as more, at 0.2 s of a core each
    faults = ["segfault", "abort", "exit", "sleeps", "nonsense", "children"]  # of these, one in a session of its own
    assert attempt("none")[0].status == "ok"
    files, processes = open_files(), processes_kept()
    outcomes = attempt(*faults, "none")
    assert Counter(outcome.status for outcome in outcomes) == {"crash": 5, "timeout": 1, "ok": 1}
    assert [outcome.status == "timeout" for outcome in outcomes[:-1]] == [fault == "sleeps" for fault in faults]
    # one worker more than before: the last of them
    assert len(processes_kept() - processes) == 1
    assert open_files() == files + FILES_OF_A_CHILD
    assert not [path for path in Path("/proc").glob("[0-9]*/stat") if is_left_over(path)]


def test_a_compiler_that_dies_or_talks_nonsense_costs_one_variant(tmp_path: Path) -> None:
    from registry.artifact import Artifact, Variant
    from registry.tuner.jobs import Failed

    plugin = tmp_path / "compiled.py"
    plugin.write_text(COMPILED)
    selector = selectors.DefaultSelector()
    compiler = CompilePool(selector, 1, [str(plugin)], Limits(compile=20))
    results: dict[str, Artifact | Failed | None] = {}
    try:
        for what in ("abort", "exit", "nonsense", "fine"):
            variant = Variant("none", "none", {"what": what})
            while (found := compiler.want("square", "compiled.any", variant, CPU.target)) is None:
                for key, _ in selector.select(0.05):
                    key.data()
                compiler.check_deadlines()
            results[what] = found
    finally:
        compiler.close()
        selector.close()
    faults = {what: result.status for what, result in results.items() if isinstance(result, Failed)}
    assert faults == {"abort": "crash", "exit": "compile_error", "nonsense": "crash"}
    assert isinstance(results["fine"], Artifact)


COMPILED = """
import os
import sys
import registry
from registry.artifact import Artifact
from registry.implementation import Implementation

KERNEL_REGISTRY_API = 1
sys.path.insert(0, "PLACE")


def nonsense():
    from faulty import say_nonsense
    say_nonsense(b"no message")
    say_nonsense(bytes([10]))


class Compiled(Implementation):
    op = "square"
    name = "compiled.any"
    device_types = frozenset({"cpu"})

    def compile(self, variant, target):
        what = variant.spec["what"]
        if what == "abort":
            os.abort()
        if what == "exit":
            raise SystemExit("no")
        if what == "nonsense":
            nonsense()
        return Artifact(variant)

    def bind(self, problem, config, device, built):
        raise NotImplementedError


@registry.implements("square")
def square_implementations():
    return [Compiled()]
""".replace("PLACE", str(FAULTY.parent))


def test_a_long_wait_for_the_device_is_told_once_with_the_process_that_holds_it(
    attempt: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_client, "_LONG_WAIT_S", 0.2)
    notes = Notes()
    lock = DeviceLock(CPU)
    with contextlib.ExitStack() as held:
        held.enter_context(lock.held(lambda: pytest.fail("nobody else holds it")))
        notes.heard = held.close
        (outcome,) = attempt("none", notes=notes)
    lock.close()
    assert outcome.status == "ok"
    assert notes == [f"waiting for {CPU}, which process {os.getpid()} holds"]


class Notes(list[str]):
    """Calls ``heard`` at each note."""

    heard: Callable[[], None]

    def append(self, note: str) -> None:
        super().append(note)
        self.heard()


def test_a_stopped_process_that_holds_the_device_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stopped:
        monkeypatch.setattr(device_client, "holder_of", lambda device: stopped.pid)
        assert device_client._why_waiting(CPU) == f"waiting for {CPU}, which process {stopped.pid} holds"
        stopped.send_signal(signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        assert f"is stopped: kill -CONT {stopped.pid}" in device_client._why_waiting(CPU)
        stopped.kill()

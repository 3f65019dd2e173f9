"""Submissions behind bubblewrap on a GPU: memory shared by file descriptors, and what a stopped process may leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.sandbox.limits import SandboxLimits
from registry.sandbox.memory import opening
from registry.sandbox.probing import SandboxedProbes
from registry.sandbox.trial import SandboxedSession, trial
from registry.sandbox.tuning.sandboxed_run import sandboxed_catalog, sandboxed_options
from registry.tuner.events import Event, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tests.sandbox.sandboxing import GOOD, LIMITS, entrant, needs_bubblewrap, reason, session_of, tried

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = needs_bubblewrap

# the end of a request waits for the device; these wait for one stream alone
UNWAITED = """
import torch

def waits_for_one_stream(device=None):
    torch.cuda.current_stream().synchronize()

torch.cuda.synchronize = waits_for_one_stream
side = torch.cuda.Stream()
"""
LATE = (
    UNWAITED
    + """
def square(x):
    y = torch.zeros_like(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        torch.mul(x, x, out=y)
    return y
"""
)
LASTING = (
    UNWAITED
    + """
started = []

def square(x):
    y = x * x  # a kernel's first launch loads it, which would wait for the other one
    if not started:
        with torch.cuda.stream(side):
            torch.cuda._sleep(1 << 42)
        started.append(True)
    return y
"""
)
MEMORY = """
import torch
held = []

def square(x):
    if not held:
        held.append(torch.ones(6 << 30, dtype=torch.uint8, device=x.device))
    return x * x
"""
NODES = """
import os

def square(x):
    import torch
    nodes = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    if len(nodes) != 1 or torch.cuda.device_count() != 1:
        raise RuntimeError(f"it sees {nodes}")
    return x * x
"""


@pytest.fixture(scope="module")
def session() -> SandboxedSession:
    return session_of(Device.of("cuda"), n=1 << 20, limit_us=1_000_000.0)


def test_memory_of_a_gpu_is_shared_by_its_descriptor() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    one = opening.made(5 << 20, device)
    one.bytes.copy_(torch.arange(5 << 20, device=device).to(torch.uint8))
    assert one.bytes.data_ptr() % 512 == 0
    assert int(one.bytes[:1024].long().sum()) == 4 * sum(range(256))
    one.close()


def test_an_honest_submission_is_right_and_timed(tmp_path: Path, session: SandboxedSession) -> None:
    found = tried(GOOD, tmp_path, session)
    assert (found.outcome.status, found.outcome.message) == ("ok", "")
    assert found.calls > 8
    assert found.outcome.samples


def test_a_kernel_that_ends_after_the_answer_is_wrong(tmp_path: Path, session: SandboxedSession) -> None:
    status, message = reason(LATE, tmp_path, session)
    assert status == "wrong_result", message
    assert "expected" in message


def test_a_kernel_that_runs_while_inputs_are_written_is_found(tmp_path: Path, session: SandboxedSession) -> None:
    assert reason(LASTING, tmp_path, session) == (
        "error", "a kernel of it runs on the GPU while its processes are stopped"
    )  # fmt: skip


def test_who_takes_the_gpus_memory_is_refused_and_it_is_free_again(tmp_path: Path, session: SandboxedSession) -> None:
    free, _ = torch.cuda.mem_get_info()
    status, message = reason(MEMORY, tmp_path, session, SandboxLimits(gpu_bytes=4 << 30))
    assert status == "out_of_memory"
    assert "it holds" in message
    now, _ = torch.cuda.mem_get_info()
    assert free - now < 2 << 30


def test_only_one_gpu_is_there(tmp_path: Path, session: SandboxedSession) -> None:
    assert reason(NODES, tmp_path, session)[0] == "ok"


def test_a_submission_in_triton_compiles_in_its_own_cache(tmp_path: Path, session: SandboxedSession) -> None:
    text = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, place < n)
    tl.store(y + place, value * value, place < n)

def square(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
    found = tried(text, tmp_path, session)
    assert (found.outcome.status, found.outcome.message) == ("ok", "")


ONE_SIZE = """
def square(x):
    y = x * x
    if x.numel() != 1 << 20:
        y[-1:] += 1
    return y
"""
# for each size once, and for all streams; two threads that take turns fill it before either has read it
WORKSPACE = """
import torch
held = {}

def square(x):
    space = held.setdefault(x.shape, torch.empty_like(x))
    torch.mul(x, x, out=space)
    torch.cuda._sleep(200_000)
    return space.clone()
"""


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        (GOOD, "ok", ""),
        (ONE_SIZE, "wrong_result", "right here, but not for square(n="),
        (WORKSPACE, "wrong_result", "called by two threads at once it is wrong"),
    ],
    ids=["honest", "one size", "workspace"],
)
def test_other_sizes_layouts_and_two_threads_are_tried(
    text: str, status: str, told: str, tmp_path: Path, session: SandboxedSession
) -> None:
    examine = SandboxedProbes(session.device).check_everywhere
    outcome = trial(entrant(text, tmp_path), session, LIMITS, examine=examine).outcome
    assert (outcome.status, told in outcome.message) == (status, True), outcome.message


STRANGER = """
import registry
import torch
import triton
import triton.language as tl
from registry import Launch, Space
from registry.backends import TritonImplementation

@triton.jit
def squared(y, x, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, place < n)
    tl.store(y + place, value * value, place < n)

class Blocks(TritonImplementation):
    op, name = "square", "stranger.blocks"

    def unsupported(self, problem, device):
        yield from super().unsupported(problem, device)
        if not problem.traits["contiguous"]:
            yield "tensors are not contiguous"

    def space(self, problem, device):
        return Space(BLOCK=[1024, 4096])

    def launch(self, problem, config, device):
        return Launch(squared, (triton.cdiv(problem.n, config["BLOCK"]),), ("y", "x", problem.n), config)

class Nothing(TritonImplementation):
    op, name = "square", "stranger.nothing"

    def launch(self, problem, config, device):
        return Launch(squared, (triton.cdiv(problem.n, 2048),), ("y", "x", problem.n), {"BLOCK": 1024})

@registry.implements("square")
def squares():
    return [Blocks(), Nothing()]
"""


@pytest.mark.timeout(900)
def test_a_strangers_plugin_file_is_tuned_in_sandboxes(tmp_path: Path, few_blocks: None) -> None:
    file, trusted, device = tmp_path / "stranger.py", Catalog(), Device.of("cuda")
    file.write_text(STRANGER)
    problem = trusted.op("square").problem_of({"n": 1 << 20, "dtype": "float32"})
    catalog = sandboxed_catalog([file], [problem], trusted, device)
    names = ["stranger.blocks", "stranger.nothing", "torch.native"]
    options = sandboxed_options(TuneOptions(Budget(trials=6), implementations=names), catalog, device)
    events: list[Event] = []
    (result,) = tune(
        [problem], catalog=catalog, device=device, database=str(tmp_path / "sandboxed.db"), options=options,
        observer=events.append,
    )  # fmt: skip
    trials = [one for one in events if isinstance(one, TrialDone)]
    told = [(one.implementation, one.config, one.message) for one in trials]
    tried = {(one.implementation, one.status) for one in trials}
    assert tried == {("stranger.blocks", "ok"), ("stranger.nothing", "wrong_result"), ("torch.native", "ok")}, told
    assert result.implementation in {"stranger.blocks", "torch.native"}

"""`registry check` on a GPU: numbers at tuned shapes, capture and replay, two streams, and what the sanitizer finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.checking import sanitizer
from registry.checking.outcomes import CheckOutcome, PluginCheck
from registry.checking.running import CheckRequest, check_plugin
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

KERNEL = """
import registry
import triton
import triton.language as tl
from registry.backends.triton import TritonImplementation


@triton.jit
def square_kernel(y, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n)
    tl.store(y + offsets, values * values, mask={mask})


class Square(TritonImplementation):
    op, name = "square", "mine.square"

    def unsupported(self, problem, device):
        if problem.dtype == "float64" or not problem.traits["contiguous"]:
            yield "written for contiguous float32 and halves"

    def launch(self, problem, config, device):
        grid = (triton.cdiv(problem.n, 1024),)
        return registry.Launch(square_kernel, grid=grid, args=("y", "x", problem.n), constants={{"BLOCK": 1024}})


@registry.implements("square")
def squares():
    return [Square()]
"""


PLAIN = """
import torch
import registry
from registry import Implementation


class Square(Implementation):
    op, name = "square", "mine.square"

    def bind(self, problem, config, device, built):
        held = {{}}
        scratch_of_all = torch.empty(problem.n, device=device.torch, dtype=problem.torch_dtype)

        def run(outputs, arguments, scratch):
            x, y = arguments[0], outputs[0]
            {body}

        return run


@registry.implements("square")
def squares():
    return [Square()]
"""
# the first result again: right until the inputs change, and a graph replays a call that has copied only
REMEMBERS = """
            if torch.cuda.is_current_stream_capturing():
                y.copy_(held["first"]) if held else None
            else:
                torch.mul(x, x, out=y)
                held["first"] = torch.zeros_like(y)
"""
WAITS = "y.copy_((x.cpu() * x.cpu()).to(x.device))"
# one buffer for the calls of all streams: what one writes another overwrites before it is read
SHARED = """
            torch.mul(x, x, out=scratch_of_all)
            torch.cuda._sleep(2_000_000)
            y.copy_(scratch_of_all)
"""


def checked(folder: Path, mask: str, database: str = "") -> PluginCheck:
    file = folder / "mine.py"
    file.write_text(KERNEL.format(mask=mask))
    return check_plugin(CheckRequest(str(file), database=database or str(folder / "none.db")))


def outcome_of(folder: Path, body: str, name: str) -> CheckOutcome:
    """The outcome of one check of an implementation of torch with this body."""
    file = folder / "mine.py"
    file.write_text(PLAIN.format(body=body.strip()))
    done = check_plugin(CheckRequest(str(file), database=str(folder / "none.db")))
    (found,) = [each for each in done.outcomes if each.name == name]
    return found


def test_a_replay_that_does_not_compute_is_found(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, REMEMBERS, "capture")
    assert found.verdict == "failed"
    assert "replay 1 of the captured call" in found.reason


def test_a_call_that_waits_for_the_host_cannot_be_captured(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, WAITS, "capture")
    assert found.verdict == "failed"
    assert "it cannot be captured" in found.reason
    assert "capturable = False says so" in found.reason


def test_calls_on_two_streams_that_share_a_buffer_are_found(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, SHARED, "two streams")
    assert found.verdict == "failed"
    assert "called by two threads at once" in found.reason


def test_numbers_are_checked_at_tuned_shapes(tmp_path: Path, few_blocks: None) -> None:
    catalog, database = Catalog(), str(tmp_path / "tuned.db")
    problem = catalog.op("square").problem_of({"n": 77_777, "dtype": "float32"})
    options = TuneOptions(Budget(trials=2), implementations=["torch.native"])
    tune([problem], catalog=catalog, device=Device.of("cuda"), database=database, options=options)
    right, wrong = (
        {each.name: each for each in checked(tmp_path, mask, database).outcomes}["tuned shapes"]
        for mask in ("offsets < n", "(offsets < n) & (offsets != 77_776)")
    )
    assert (right.verdict, right.reason) == ("passed", "")
    assert wrong.verdict == "failed"
    assert "77777" in wrong.reason


def test_a_kernel_that_is_right_passes_on_the_gpu(tmp_path: Path) -> None:
    done = checked(tmp_path, "offsets < n")
    assert done.ok, done.as_data()
    verdicts = {each.name: each.verdict for each in done.outcomes}
    assert {name: verdicts[name] for name in ("numerics", "capture", "two streams", "tuned shapes")} == {
        "numerics": "passed", "capture": "passed", "two streams": "passed", "tuned shapes": "skipped",
    }  # fmt: skip


RACES = """
import registry
from registry import Launch
from registry.backends import CudaImplementation, CudaKernel

KERNEL = CudaKernel(r'''
__global__ void square(float *y, const float *x, long long n) {
    __shared__ float held[256];
    long long place = blockIdx.x * 256LL + threadIdx.x;
    held[threadIdx.x] = place < n ? x[place] : 0.0f;
    float other = held[255 - threadIdx.x];
    held[255 - threadIdx.x] = other;
    if (place < n) y[place] = x[place] * x[place] + 0.0f * other;
}
''', "square")


class Square(CudaImplementation):
    op, name = "square", "mine.square"

    def unsupported(self, problem, device):
        yield from super().unsupported(problem, device)
        if problem.dtype != "float32" or not problem.traits["contiguous"]:
            yield "written for contiguous float32"

    def launch(self, problem, config, device):
        return Launch(KERNEL, (-(-problem.n // 256),), ("y", "x", problem.n), {}, {"block": 256})


@registry.implements("square")
def squares():
    return [Square()]
"""


@pytest.mark.skipif(sanitizer.sanitizer() is None, reason="needs compute-sanitizer")
def test_a_race_in_shared_memory_is_found(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(RACES)
    done = check_plugin(CheckRequest(str(file), architectures=("sm_90",), database=str(tmp_path / "none.db")))
    verdicts = {each.name: (each.verdict, each.reason) for each in done.outcomes}
    assert verdicts["racecheck"][0] == "failed", verdicts
    assert "hazard" in verdicts["racecheck"][1], verdicts
    assert verdicts["memcheck"] == ("passed", ""), verdicts


@pytest.mark.skipif(sanitizer.sanitizer() is None, reason="needs compute-sanitizer")
def test_a_kernel_that_writes_beyond_its_output_is_found(tmp_path: Path) -> None:
    done = checked(tmp_path, "offsets < n + 512")
    found = {each.name: each for each in done.outcomes}
    assert found["numerics"].verdict == "failed"
    assert found["memcheck"].verdict == "failed", found["memcheck"]
    assert "Invalid __global__ write" in found["memcheck"].reason


@pytest.mark.skipif(sanitizer.sanitizer() is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("source", ["triton", "cuda"])
def test_the_sanitizer_has_nothing_against_a_kernel_that_is_right(tmp_path: Path, source: str) -> None:
    file = tmp_path / "mine.py"
    in_turn = RACES.replace("x[place] : 0.0f;", "x[place] : 0.0f; __syncthreads();")
    file.write_text(KERNEL.format(mask="offsets < n") if source == "triton" else in_turn)
    done = check_plugin(CheckRequest(str(file), architectures=("sm_90",), database=str(tmp_path / "none.db")))
    found = {each.name: each for each in done.outcomes}
    assert {tool: found[tool].verdict for tool in sanitizer.TOOLS} == dict.fromkeys(sanitizer.TOOLS, "passed"), found

"""Profiles on a GPU: the kernels of a call are its time, whoever launched them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import registry
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import RegistryError
from registry.problem import Problem
from registry.profiling.floors import Floors
from registry.profiling.ncu import MeasuredCall, ncu_reports
from registry.profiling.problems import profiled_problems
from registry.profiling.summary import summed
from registry.profiling.trace import read_trace

from .. import fresh

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DEVICE = registry.Device.of("cuda")


def softmax(rows: int) -> Problem:
    return registry.ops()["softmax"].problem_of({"rows": rows, "cols": 4096, "dtype": "bfloat16"})


@pytest.mark.parametrize("name", ["triton.row", "cuda.row", "torch.native"])
def test_calls_have_the_time_of_their_kernels(tmp_path: Path, name: str) -> None:
    dispatcher, path = Dispatcher(Catalog()), tmp_path / "trace.json"
    with dispatcher.using(softmax=name):
        assert profiled_problems(dispatcher, [softmax(256), softmax(8192)], DEVICE, 10, path) == []
    trace = read_trace(path)
    assert trace.on_device
    assert {(call.op, call.implementation) for call in trace.calls} == {("softmax", name)}
    assert len(trace.calls) == 20
    assert all(call.device_us > 0.0 for call in trace.calls)
    large, small = summed(trace, dispatcher.catalog.ops(), Floors(DEVICE).us)
    assert (large.dims.split()[0], small.dims.split()[0]) == ("rows=8192", "rows=256")
    assert large.floor_us
    assert large.share > small.share > 0.0


PROGRAM = """
import torch, registry
x = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(5):
    registry.call("softmax", x)
torch.cuda.synchronize()
"""


def test_a_program_writes_its_trace_with_kernels(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = fresh.run(script, env={**os.environ, "KERNEL_REGISTRY_PROFILE": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    calls = read_trace(path).calls
    assert [call.op for call in calls] == ["softmax"] * 5
    assert all(call.device_us > 0.0 for call in calls)


def test_ncu_tells_the_metrics_of_a_winners_kernels() -> None:
    ncu = shutil.which("ncu")
    if ncu is None:
        pytest.skip("needs Nsight Compute")
    try:
        (report, *_) = ncu_reports(ncu, MeasuredCall(softmax(1024), "cuda:0"))
    except RegistryError as fault:
        if "ERR_NVGPUCTRPERM" in str(fault):
            pytest.skip("the driver lets nobody read counters here")
        raise
    assert {"Duration", "Achieved Occupancy", "Registers Per Thread"} <= report.metrics.keys()

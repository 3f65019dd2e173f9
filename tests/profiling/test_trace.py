"""Traces of torch's profiler: which kernels belong to which call, and what is no call of an op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from registry.contracts import BOX
from registry.dispatch.torch_side.profiles import dims_of, parsed_name
from registry.errors import RegistryError
from registry.profiling.summary import summed
from registry.profiling.trace import ProfiledCall, Trace, calls_of, read_trace

SOFTMAX = "kernel_registry::softmax (triton.row) [rows=4 cols=8 dtype=float32]"
OUTER = "kernel_registry::linear (torch.native)"


def event(kind: str, name: str, start: float, us: float, thread: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": us, "pid": 7, "tid": thread, "args": args}


def launch(start: float, correlation: int, kind: str = "cuda_driver", thread: int = 1) -> dict[str, Any]:
    return event(kind, "cuLaunchKernelEx", start, 1.0, thread, correlation=correlation)


def kernel(us: float, correlation: int, kind: str = "kernel") -> dict[str, Any]:
    return event(kind, "some_kernel", 1000.0, us, 900, correlation=correlation)


def test_a_record_has_op_implementation_and_dimensions() -> None:
    assert parsed_name(SOFTMAX) == ("softmax", "triton.row", "rows=4 cols=8 dtype=float32")
    assert parsed_name("acme::row_sum (acme.fast)") == ("acme::row_sum", "acme.fast", "")
    assert parsed_name("kernel_registry::gelu (reference) []") == ("gelu", "reference", "")
    for other in ("kernel_registry::softmax", "aten::add", "aten::add (2 inputs)", "my step (a.b)", ""):
        assert parsed_name(other) is None
    assert dims_of("n=4 flag=true none=false x=0.5 dtype=bfloat16") == {
        "n": 4, "flag": True, "none": False, "x": 0.5, "dtype": "bfloat16",
    }  # fmt: skip


def test_kernels_belong_to_the_innermost_call_that_launched_them() -> None:
    trace = calls_of(
        [
            event("user_annotation", OUTER, 10.0, 50.0),
            launch(11.0, 1),
            event("user_annotation", SOFTMAX, 20.0, 10.0),
            launch(21.0, 2, "cuda_runtime"),
            launch(29.0, 3),
            launch(40.0, 4),  # behind softmax, within linear
            launch(25.0, 5, thread=2),  # another thread's
            launch(70.0, 6),  # behind both
            *(kernel(float(us), number) for number, us in enumerate((100, 20, 3, 4, 500, 600), 1)),
            kernel(8.0, 2, "gpu_memcpy"),
            event("gpu_user_annotation", SOFTMAX, 1000.0, 77.0, 900),
            event("cpu_op", "kernel_registry::softmax", 19.0, 12.0),
            {"ph": "i", "name": SOFTMAX, "ts": 0.0},
        ]
    )
    assert set(trace.calls) == {
        ProfiledCall("softmax", "triton.row", "rows=4 cols=8 dtype=float32", 10.0, 31.0),
        ProfiledCall("linear", "torch.native", "", 50.0, 104.0),
    }
    assert trace.device_us == 1235.0
    assert trace.host_us == 61.0
    assert trace.on_device


def test_calls_are_summed_with_their_share_of_the_floor() -> None:
    calls = [ProfiledCall("softmax", "triton.row", "rows=4 cols=8 dtype=float32", 9.0, us) for us in (1.0, 2.0, 9.0)]
    gone = ProfiledCall("softmax", "reference", "other=4", 9.0, 8.0)
    unknown = ProfiledCall("acme::gone", "acme.fast", "n=1", 9.0, 4.0)
    trace = Trace((*calls, gone, unknown), 100.0, 48.0)
    ops = {op.name: op for op in BOX}
    rows = summed(trace, ops, lambda op, problem: 0.5 * problem.rows)
    assert [(row.op, row.calls, row.total_us, row.median_us, row.share, row.of_floor) for row in rows] == [
        ("softmax", 3, 12.0, 2.0, 0.25, 1.0),
        ("softmax", 1, 8.0, 8.0, 8 / 48, None),
        ("acme::gone", 1, 4.0, 4.0, 4 / 48, None),
    ]
    assert [row.floor_us for row in summed(trace, ops, lambda op, problem: 1.0, most_floors=0)] == [None] * 3
    # on a CPU the time of the host counts
    host = Trace((ProfiledCall("softmax", "cpp.rows", "", 30.0, 0.0),), 60.0, 0.0)
    (row,) = summed(host, ops, lambda op, problem: None)
    assert (row.total_us, row.share, row.of_floor) == (30.0, 0.5, None)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"traceEvents": 3}', "\0"])
def test_another_file_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(RegistryError, match="is no trace of torch's profiler"):
        read_trace(path)

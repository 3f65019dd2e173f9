"""Runs for many row counts enqueue, at each of them, what the run bound to it alone does. The driver is a recorder."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from registry.artifact import Signature
from registry.backends.cuda import CudaKernel
from registry.backends.cuda import launch as cuda_launch
from registry.backends.triton import launch as triton_launch
from registry.backends.triton.launch import BoundLaunch
from registry.backends.triton.variant import Operand
from registry.dispatch.plans.written_plan import Sizes, fixed, written_call
from registry.implementation import Launch
from registry.problem import Arguments, TensorSpec
from registry.symbolic import Interval, value_at

ROWS = [1, 2, 15, 16, 17, 100, 4097]


def launches_of(rows: Any) -> list[Launch]:
    """Two launches, the second over scratch; grids and numbers follow from the rows."""
    kernel = CudaKernel("", "kernel")
    return [
        Launch(kernel, (-(-rows // 16), 2), ("y", "x", "eps", rows, rows * 7 // 2, 3, 0.5), {}, {"block": 128}),
        Launch(kernel, (rows * 2,), ("partial", "y", rows / 2), {}, {"block": (32, 2)}, cluster=(2,), shared_bytes=64),
    ]


SPEC = TensorSpec.contiguous((4,), torch.float32)
SIGNATURE = Signature(Arguments("op", {"x": SPEC, "eps": 0.25}), {"y": SPEC}, {"partial": SPEC})


def recorder(calls: list[Any]) -> Any:
    """cuLaunchKernelEx, through ctypes as the driver's; remembers grid, configuration and arguments."""

    def enqueue(where: int, kernel: int, parameters: int, _extra: None) -> int:
        counts = {11: 7, 22: 3}
        pointers = (ctypes.c_void_p * counts[kernel]).from_address(parameters)
        attribute_count = ctypes.c_uint32.from_address(where + 48).value
        configuration = ctypes.string_at(where, 40)
        arguments = [ctypes.string_at(pointer, 8) for pointer in pointers if pointer]
        calls.append((kernel, configuration, attribute_count, arguments))
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(enqueue)


def test_a_cuda_run_packs_what_the_row_count_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(cuda_launch, "_enqueue", lambda: recorder(calls))
    monkeypatch.setattr(cuda_launch, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_launch, "current_stream", lambda index: 5)
    kernels = [cuda_launch.Kernel(11, None), cuda_launch.Kernel(22, None)]
    given = ((torch.empty(4),), (torch.empty(4), 0.25), (torch.empty(4),))
    many = cuda_launch.bind_rows(kernels, ["a", "b"], launches_of(Interval(8).size()), SIGNATURE, 0, None)
    for rows in ROWS:
        alone = cuda_launch.bind_launches(kernels, ["a", "b"], launches_of(rows), SIGNATURE, 0, None)
        many(*given, rows)
        alone(*given)
        assert [len(arguments) for *_, arguments in calls] == [7, 3, 7, 3]
        assert calls[:2] == calls[2:]
        calls.clear()


def test_a_misaligned_tensor_takes_the_row_count_along(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(cuda_launch, "_enqueue", lambda: recorder([]))
    monkeypatch.setattr(cuda_launch, "current_device", lambda: 0)
    kernels = [cuda_launch.Kernel(11, None), cuda_launch.Kernel(22, None)]
    launches = launches_of(Interval(8).size())
    run = cuda_launch.bind_rows(kernels, ["a", "b"], launches, SIGNATURE, 0, lambda *given: told.append(given[3]))
    run((torch.empty(4),), (torch.empty(5)[1:], 0.25), (torch.empty(4),), 77)
    assert told == [77]


def triton_launches(rows: Any, kernel: Any) -> list[BoundLaunch]:
    operands = (
        Operand("y", "tensor", "*fp32", "outputs", 0, aligned=True),
        Operand("x", "tensor", "*fp32", "arguments", 0, aligned=True),
        Operand("eps", "attribute", "fp32", "arguments", 1),
        Operand("rows", "number", "i32", value=rows),
        Operand("units", "number", "i32", value=rows * 7 // 2),
        Operand("BLOCK", "constant", "constexpr", value=64),
    )
    return [
        BoundLaunch(None, kernel, (-(-rows // 16), 2, 1), operands, {}),
        BoundLaunch(None, kernel, (rows * 2, 1, 1), operands, {}),
    ]


@pytest.mark.parametrize("scratch_bytes", [0, 32])
def test_a_triton_run_launches_what_the_row_count_asks(monkeypatch: pytest.MonkeyPatch, scratch_bytes: int) -> None:
    calls: list[tuple[Any, ...]] = []
    allocated: list[int] = []

    def empty(size: int, **_: Any) -> str:
        allocated.append(size)
        return "scratch"

    launcher = SimpleNamespace(
        launch=lambda *given: calls.append(given), global_scratch_size=scratch_bytes, num_ctas=2,
        launch_cooperative_grid=False, launch_pdl=False,
    )  # fmt: skip
    kernel = SimpleNamespace(run=launcher, function=1, packed_metadata=(), metadata=SimpleNamespace())
    monkeypatch.setattr(triton_launch, "current_device", lambda: 0)
    monkeypatch.setattr(triton_launch, "current_stream", lambda index: 5)
    monkeypatch.setattr(torch, "empty", empty)
    y, x, unaligned = torch.ones(4), torch.ones(4), torch.ones(5)[1:]
    twins: list[tuple[Any, ...]] = []
    twin = lambda *given: twins.append(given)  # noqa: E731
    symbolic = triton_launches(Interval(8).size(), kernel)
    many = triton_launch._generated_run(symbolic, 0, twin, twin, True, rows=True)
    for rows in ROWS:
        alone = triton_launch._generated_run(triton_launches(rows, kernel), 0, twin, twin, True)
        many((y,), (x, 0.5), (), rows)
        alone((y,), (x, 0.5), ())
        assert len(calls) == 4
        assert calls[:2] == calls[2:]
        assert allocated[: len(allocated) // 2] == allocated[len(allocated) // 2 :]
        assert len(allocated) == (4 if scratch_bytes else 0)
        calls.clear()
        allocated.clear()
        many((y,), (unaligned, 0.5), (), rows)
        assert twins.pop()[3] == rows
        assert symbolic[0].at(rows) == triton_launches(rows, kernel)[0]


@pytest.mark.parametrize("direct", [True, False])
def test_a_plan_launches_triton_kernels_in_line(monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    calls: list[tuple[Any, ...]] = []
    left: list[tuple[Any, ...]] = []
    launcher = SimpleNamespace(
        launch=lambda *given: calls.append(given), global_scratch_size=0, num_ctas=1,
        launch_cooperative_grid=False, launch_pdl=False,
    )  # fmt: skip
    kernel = SimpleNamespace(run=launcher, function=1, packed_metadata=(), metadata=SimpleNamespace())
    monkeypatch.setattr(triton_launch, "current_device", lambda: 0)
    monkeypatch.setattr(triton_launch, "current_stream", lambda index: 5)
    leave = lambda *given: left.append(given)  # noqa: E731
    symbolic = triton_launches(Interval(8).size(), kernel)
    run = triton_launch._generated_run(symbolic, 0, leave, leave, direct, rows=True)
    plan = written_call(2, SPEC.device, run, [fixed(SPEC)], [], None, sizes=Sizes(["rows = 7"], ("rows",)))
    for x in (torch.ones(4), torch.ones(5)[1:]):
        y = plan(x, 0.5)
        assert y.shape == (4,)
        if direct and x.data_ptr() % 16 == 0:
            run((y,), (x, 0.5), (), 7)
            assert len(calls) == 4
            assert calls[:2] == calls[2:]
        else:
            outputs, arguments, scratch, rows = left.pop()
            assert outputs[0] is y
            assert arguments[0] is x
            assert (arguments[1], scratch, rows) == (0.5, (), 7)


def test_values_at_a_row_count() -> None:
    rows = Interval(8).size()
    assert [value_at(value, 20) for value in (rows, rows // 3, 7, "y", 0.5)] == [20, 6, 7, "y", 0.5]

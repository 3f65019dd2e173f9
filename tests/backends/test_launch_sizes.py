"""Runs of one form enqueue, for each size, what a run bound to that size alone does. The driver is a recorder."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from registry.artifact import Signature
from registry.backends.cuda import CudaKernel
from registry.backends.cuda import launch as cuda_launch
from registry.backends.cuda.launch import LaunchForm
from registry.backends.launch_forms import Forms, form_key, launch_key
from registry.backends.launch_numbers import numbers_of
from registry.backends.triton import launch as triton_launch
from registry.backends.triton.bound_launch import BoundLaunch
from registry.backends.triton.launch import DeviceForm
from registry.backends.triton.variant import Operand
from registry.dispatch.plans.written_plan import written_call
from registry.implementation import Launch
from registry.problem import Arguments, TensorSpec

ROWS = [1, 2, 15, 16, 17, 100, 4097]


def launches_of(rows: int) -> tuple[Launch, ...]:
    """Two launches, the second over scratch; grids and numbers follow from the rows."""
    kernel = CudaKernel("", "kernel")
    return (
        Launch(kernel, (-(-rows // 16), 2), ("y", "x", "eps", rows, rows * 7 // 2, 3, 0.5), {}, {"block": 128}),
        Launch(kernel, (rows * 2,), ("partial", "y", rows / 2), {}, {"block": (32, 2)}, cluster=(2,), shared_bytes=64),
    )


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


@pytest.mark.parametrize("count", [1, 2])
def test_a_cuda_run_packs_what_its_size_asks(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(cuda_launch, "_enqueue", lambda: recorder(calls))
    monkeypatch.setattr(cuda_launch, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_launch, "current_stream", lambda index: 5)
    kernels = [cuda_launch.Kernel(11, None), cuda_launch.Kernel(22, None)][:count]
    given = ((torch.empty(4),), (torch.empty(4), 0.25), (torch.empty(4),))
    form = LaunchForm(kernels, launches_of(8)[:count], SIGNATURE, 0, guarded=False)
    for rows in ROWS:
        launches = launches_of(rows)[:count]
        form.run(launches, None)(*given)
        LaunchForm(kernels, launches, SIGNATURE, 0, guarded=False).run(launches, None)(*given)
        assert [len(arguments) for *_, arguments in calls] == [7, 3][:count] * 2
        # a form has a cluster attribute of its own
        assert calls[:count] == calls[count:]
        calls.clear()


TRITON_KERNEL = object()


def twin(told: list[Any]) -> Any:
    """A run that is told of."""
    return lambda *given: told.append(given)


def triton_launches(rows: int, kernel: Any) -> tuple[tuple[Launch, ...], list[BoundLaunch]]:
    operands = (
        Operand("y", "tensor", "*fp32", "outputs", 0, aligned=True),
        Operand("x", "tensor", "*fp32", "arguments", 0, aligned=True),
        Operand("eps", "attribute", "fp32", "arguments", 1),
        Operand("rows", "number", "i32", value=rows, argument=3),
        Operand("units", "number", "i32", value=rows * 7 // 2, argument=4),
        Operand("BLOCK", "constant", "constexpr", value=64),
    )
    grids = (-(-rows // 16), 2), (rows * 2,)
    args = ("y", "x", "eps", rows, rows * 7 // 2)
    launches = tuple([Launch(TRITON_KERNEL, grid, args, {"BLOCK": 64}) for grid in grids])
    return launches, [BoundLaunch(TRITON_KERNEL, kernel, (*grid, 1, 1)[:3], operands, {}) for grid in grids]


@pytest.mark.parametrize("scratch_bytes", [0, 32])
def test_a_triton_run_launches_what_its_size_asks(monkeypatch: pytest.MonkeyPatch, scratch_bytes: int) -> None:
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
    form = DeviceForm(*triton_launches(8, kernel), 0, direct=True)
    for rows in ROWS:
        twins: list[tuple[Any, ...]] = []
        launches, bound = triton_launches(rows, kernel)
        run = form.run(launches, partial(twin, twins))
        run((y,), (x, 0.5), ())
        assert [given[:3] for given in calls] == [launch.grid for launch in bound]
        assert all((0.5, rows, rows * 7 // 2, 64) == given[-4:] for given in calls)
        programs = [-(-rows // 16) * 2 * 2 * 32, rows * 2 * 2 * 32]
        assert allocated == (programs if scratch_bytes else [])
        calls.clear()
        allocated.clear()
        run((y,), (unaligned, 0.5), ())
        assert twins
        assert not calls


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
    monkeypatch.setattr(triton_launch._CarefulRun, "__call__", lambda careful, *given: left.append(given))
    form = DeviceForm(*triton_launches(8, kernel), 0, direct=direct)
    for rows in ROWS:
        run = form.run(triton_launches(rows, kernel)[0], partial(twin, left))
        plan = written_call(2, SPEC.device, run, [TensorSpec.contiguous((rows,), torch.float32)], [], None)
        for x in (torch.ones(4), torch.ones(5)[1:]):
            y = plan(x, 0.5)
            assert y.shape == (rows,)
            if direct and x.data_ptr() % 16 == 0:
                assert [given[:3] for given in calls] == [(-(-rows // 16), 2, 1), (rows * 2, 1, 1)]
                calls.clear()
            else:
                outputs, arguments, scratch = left.pop()
                assert outputs[0] is y
                assert arguments[0] is x
                assert (arguments[1], scratch) == (0.5, ())


def test_launches_share_a_form_where_compiled_code_may_be_shared() -> None:
    def key(launch: Launch, signature: Signature = SIGNATURE) -> Any:
        return form_key([launch_key(launch, lambda _, number: type(number).__name__)], signature, 0)

    def launch(**changes: Any) -> Launch:
        given = {"grid": (4, 2), "args": ("y", "x", 7, 0.5), "constants": {"BLOCK": 1}, "options": {"block": [32, 2]}}
        return Launch(CudaKernel("", "kernel"), **{**given, **changes})

    def signature(x: TensorSpec = SPEC, eps: Any = 0.25) -> Signature:
        return Signature(Arguments("op", {"x": x, "eps": eps}), {"y": SPEC}, {"partial": SPEC})

    base = key(launch())
    assert key(launch(grid=(9, 1), args=("y", "x", 8, 0.25))) == base
    wide = TensorSpec.contiguous((64, 3), torch.float32)
    assert key(launch(), signature(wide, 0.5)) == base
    others = [
        key(launch(args=("y", "x", 7.0, 0.5))),
        key(launch(constants={"BLOCK": True})),
        key(launch(constants={"BLOCK": 1.0})),
        key(launch(options={"block": [32, 4]})),
        key(launch(shared_bytes=64)),
        key(launch(cluster=(2,))),
        key(launch(grid=(0, 2))),
        key(launch(), signature(TensorSpec.contiguous((4,), torch.float16))),
        key(launch(), signature(TensorSpec((4,), torch.float32, (1,), alignment=4))),
        key(launch(), signature(eps=3)),
        key(launch(), signature(eps=2**40)),
        key(launch(), signature(eps=None)),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_forms_are_bounded_and_take_no_key_that_cannot_be_hashed() -> None:
    forms: Forms[int] = Forms(most=3)
    for number in range(10):
        forms.put(number, number)
    forms.put([], 1)
    assert [forms.get(number) for number in (6, 7, 8, 9, [])] == [None, 7, 8, 9, None]


def test_numbers_are_told_of_launches_of_one_key_alone() -> None:
    kernel = CudaKernel("", "kernel")
    base: dict[str, Any] = {
        "grid": (4, 2),
        "args": ("y", "x", 7, 0.5),
        "constants": {"BLOCK": 1},
        "options": {"b": [32]},
    }
    changes: list[dict[str, Any]] = [
        {},
        {"grid": (9, 1)},
        {"grid": (0, 1)},
        {"grid": (9,)},
        {"grid": ()},
        *({"args": ("y", "x", number, 0.25)} for number in (8, 16, 2**31, 2**31 + 1, -(2**31), -(2**31) - 16)),
        {"args": ("y", "x", True, 0.5)},
        {"args": ("y", "x", 7, 1)},
        {"args": ("x", "y", 7, 0.5)},
        {"args": ("y", "x", 7)},
        {"args": ("y", "x", "z", 0.5)},
        {"args": ()},
        {"kernel": CudaKernel("", "other")},
        {"kernel": CudaKernel("", "kernel")},
        *({"constants": {"BLOCK": value}} for value in (2, True, 1.0, 0.0, -0.0, "1", None)),
        *({"constants": {"A": one, "B": other}} for one in (1, True) for other in (1, True)),
        {"constants": {"B": True, "A": 1}},
        {"constants": {"BLOCKS": 1}},
        {"options": {"b": 32}},
        {"options": {"b": 32.0}},
        {"options": {"b": [32.0]}},
        {"options": {"b": [16]}},
        {"cluster": (2,)},
        {"shared_bytes": 64},
    ]
    launches = [Launch(**{"kernel": kernel, **base, **change}) for change in changes]

    def key(launch: Launch, *, told: bool) -> Any:
        def form(place: int, number: Any) -> Any:
            narrow = type(number) is int and (-(2**31) <= number < 2**31, place == 2 and number % 16 == 0)
            return type(number).__name__, told and narrow

        return launch_key(launch, form)

    found = 0
    for told in (False, True):
        for was in launches:
            given = [f"a0_{place}" for place, one in enumerate(was.args) if type(one) is not str]
            numbers = numbers_of([was], ["x0", "y0", *given], None, [{2}] if told else None)
            for launch in launches:
                wanted = [one for one in launch.args if type(one) is not str]
                equal = key(launch, told=told) == key(was, told=told)
                assert numbers((launch,)) == ((*(*launch.grid, 1, 1)[:2], *wanted) if equal else None)
                found += equal
            assert numbers((was, was)) is None
    assert found > 2 * len(launches), "sizes alone differ in some"


def test_numbers_of_more_programs_than_a_launch_may_have_are_not_told() -> None:
    def launch(*grid: int) -> tuple[Launch]:
        return (Launch(CudaKernel("", "kernel"), grid, ()),)

    numbers = numbers_of(launch(1, 1), ["x0 * y0"], None, None, (100, 10))
    assert [numbers(launch(*grid)) for grid in ((10, 10), (51, 2), (5, 11))] == [(100,), None, None]


@pytest.mark.parametrize("direct", [True, False])
def test_a_triton_run_of_another_size_is_that_of_launches_bound_to_it(
    monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    calls: list[tuple[Any, ...]] = []
    careful: list[Any] = []
    launcher = SimpleNamespace(
        launch=lambda *given: calls.append(given), global_scratch_size=0, num_ctas=1,
        launch_cooperative_grid=False, launch_pdl=False,
    )  # fmt: skip
    kernel = SimpleNamespace(run=launcher, function=1, packed_metadata=(), metadata=SimpleNamespace())
    monkeypatch.setattr(triton_launch, "current_device", lambda: 0)
    monkeypatch.setattr(triton_launch, "current_stream", lambda index: 5)
    monkeypatch.setattr(triton_launch._CarefulRun, "__call__", lambda run, *_: careful.append(run._launches))
    form = DeviceForm(*triton_launches(8, kernel), 0, direct)
    given = (torch.ones(4),), (torch.ones(4), 0.5), ()
    for rows in ROWS:
        launches, bound = triton_launches(rows, kernel)
        for run in (form.run(launches), DeviceForm(launches, bound, 0, direct).run(launches)):
            run(*given)
            run.careful(*given)
        assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]
        assert careful[: len(careful) // 2] == careful[len(careful) // 2 :]
        assert careful[-1] == bound
        assert bool(calls) is direct
        calls.clear()
        careful.clear()

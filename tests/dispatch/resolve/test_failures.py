"""Candidates that fail: put aside for good, until memory may be free again, or not at all."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry import CompileError, DispatchWarning
from registry.contracts import SOFTMAX
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.plan import Candidate
from registry.dispatch.resolve.failures import FIRST_PAUSE_S, LONGEST_PAUSE_S, Failures
from registry.errors import DeviceError

from ...serving import serving
from .test_resolution import INCREMENT

LOST = {
    "torch": torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    "triton": RuntimeError("Triton Error [CUDA]: unspecified launch failure"),
    "driver": DeviceError("launch of k on cuda:0 failed: CUDA_ERROR_MISALIGNED_ADDRESS"),
    "assert": torch.AcceleratorError("CUDA error: device-side assert triggered"),
}
SHORT = {
    "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "triton": RuntimeError("Triton Error [CUDA]: out of memory"),
    "driver": DeviceError("launch of k on cuda:0 failed: CUDA_ERROR_OUT_OF_MEMORY"),
    "cuda": torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    "python": MemoryError(),
}
OWN = {
    "triton": RuntimeError("Triton Error [CUDA]: invalid argument"),
    "torch": torch.AcceleratorError("CUDA error: invalid configuration argument"),
    "python": ZeroDivisionError("division by zero"),
}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.now = 0.0
        dispatcher.bound("softmax").plans.failures.clock = lambda: self.now


@pytest.fixture
def broken(dispatcher: Dispatcher, told: Any) -> Any:
    """The preferred of two implementations of softmax."""
    preferred = told("a.broken", 5.0)
    dispatcher.register(preferred)
    dispatcher.register(told("a.sound"))
    return preferred


def right(call: Callable[..., torch.Tensor], *shape: int, gradient: bool = False) -> None:
    x = torch.randn(*shape, requires_grad=gradient)
    torch.testing.assert_close(call(x), torch.softmax(x, -1))


@pytest.mark.parametrize("fault", OWN.values(), ids=OWN)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("way", ["call", "op", "torch.ops", "recording"])
@pytest.mark.few(8)
def test_a_kernel_that_starts_failing_on_a_hit_is_put_aside(
    dispatcher: Dispatcher,
    broken: Any,
    fault: Exception,
    gradient: bool,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "registry.dispatch")
    ways: dict[str, Callable[..., Any]] = {
        "call": lambda x: dispatcher.call("softmax", x),
        "op": dispatcher.op("softmax"),
        "torch.ops": torch.ops.kernel_registry.softmax,
        "recording": dispatcher.op("softmax"),
    }
    call = ways[way]
    dispatcher.recorder.active = way == "recording"
    with serving(dispatcher):
        for rows in (8, 8, 9, 9):
            right(call, rows, 16, gradient=gradient)
        assert len(broken.runs) == 4
        broken._behaviour["run_fault"] = fault
        with pytest.warns(DispatchWarning, match=r"a\.broken.* failed and is put aside") as seen:
            right(call, 8, 16, gradient=gradient)
        assert len(seen) == 1
        right(call, 9, 16, gradient=gradient)
        tried, missed = broken.tried, dispatcher.bound("softmax").misses
        for _ in range(3):
            right(call, 8, 16, gradient=gradient)
            right(call, 9, 16, gradient=gradient)
    assert broken.tried == tried, "nobody tries it again"
    if way != "recording":
        assert dispatcher.bound("softmax").misses == missed, "what runs instead is a hit"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "put aside" in str(dispatcher.explain("softmax", torch.randn(8, 16, requires_grad=gradient)))


@pytest.mark.parametrize("fault", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("when", ["bind_fault", "run_fault", "hit"])
@pytest.mark.few(6)
def test_a_candidate_that_ran_out_of_memory_is_tried_again(
    dispatcher: Dispatcher, broken: Any, fault: Exception, when: str
) -> None:
    call, clock = dispatcher.op("softmax"), Clock(dispatcher)
    if when == "hit":
        right(call, 8, 16)
    broken._behaviour["run_fault" if when == "hit" else when] = fault
    with pytest.warns(DispatchWarning, match=r"a\.broken.* ran out of memory and is put aside for 1 s") as seen:
        right(call, 8, 16)
    assert len(seen) == 1
    right(call, 8, 16)
    tried, missed = broken.tried, dispatcher.bound("softmax").misses
    right(call, 8, 16)
    assert (broken.tried, dispatcher.bound("softmax").misses) == (tried, missed), "a hit for as long as the pause"
    clock.now += FIRST_PAUSE_S
    right(call, 8, 16)
    assert broken.tried == tried + 1, "memory is still short"
    clock.now += FIRST_PAUSE_S
    right(call, 8, 16)
    assert broken.tried == tried + 1, "the second pause is longer"
    broken._behaviour.clear()
    clock.now += FIRST_PAUSE_S
    runs = len(broken.runs)
    right(call, 8, 16)
    assert len(broken.runs) == runs + 1
    clock.now += LONGEST_PAUSE_S
    missed = dispatcher.bound("softmax").misses
    right(call, 8, 16)
    assert len(broken.runs) == runs + 2
    assert dispatcher.bound("softmax").misses == missed
    assert not dispatcher.bound("softmax").plans.failures


def test_memory_that_nobody_has_is_an_error_of_the_call(dispatcher: Dispatcher, told: Any) -> None:
    def short(x: torch.Tensor, dim: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory for the reference")

    schema = SOFTMAX.schema.replace("softmax", "acme::soft")
    dispatcher.catalog.define(replace(SOFTMAX, name="acme::soft", schema=schema, reference=short, backward=None))
    dispatcher.register(told("a.big", op="acme::soft", run_fault=SHORT["triton"]))
    with pytest.warns(DispatchWarning, match="out of memory"), pytest.raises(torch.OutOfMemoryError):
        dispatcher.call("acme::soft", torch.randn(4, 4))


def test_a_winner_that_fails_and_is_the_default_too_is_told_once(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    dispatcher.register(told("a.broken", 9.0, bind_fault=RuntimeError("no luck"), blocks=lambda problem: [1]))
    publish({"rows": 4, "cols": 16, "dtype": "float32"}, "a.broken", {"block": 1})
    x = torch.randn(5, 16)
    with pytest.warns(DispatchWarning, match="no luck"):
        dispatcher.call("softmax", x)
    missed = [line for line in str(dispatcher.explain("softmax", x)).splitlines() if "missed" in line]
    assert len([line for line in missed if "no luck" in line]) == 1


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
@pytest.mark.parametrize("hit", [False, True])
@pytest.mark.few(4)
def test_a_broken_gpu_is_not_blamed_on_whoever_meets_it(
    dispatcher: Dispatcher, broken: Any, fault: Exception, hit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "registry.dispatch")
    call = dispatcher.op("softmax")
    if hit:
        right(call, 8, 16)
    broken._behaviour["run_fault"] = fault
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with pytest.raises(type(fault)):
                call(torch.randn(8, 16))
    assert len(caplog.records) == 2
    assert all("fault of an earlier kernel" in message for message in caplog.messages)
    assert not dispatcher.bound("softmax").plans.failures
    broken._behaviour.clear()
    right(call, 8, 16)
    assert dispatcher.explain("softmax", torch.randn(8, 16)).implementation == "a.broken"


@pytest.mark.parametrize("fault", [OWN["triton"], SHORT["triton"]], ids=["own", "memory"])
@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_an_op_that_mutates_tells_its_fault_and_goes_on_with_another_kernel(
    dispatcher: Dispatcher, told: Any, fault: Exception
) -> None:
    dispatcher.catalog.define(INCREMENT)
    faulty = told("a.faulty", 5.0, op="acme::increment", result=lambda x: x.add_(1).clone())
    dispatcher.register(faulty)
    x = torch.zeros(4)
    dispatcher.call("acme::increment", x)
    faulty._behaviour["run_fault"] = fault
    with pytest.raises(RuntimeError, match="Triton Error"):
        dispatcher.call("acme::increment", x)
    dispatcher.call("acme::increment", x)
    assert x.tolist() == [2.0] * 4


def test_what_torch_raises_around_a_hit_is_nobodys_failure(dispatcher: Dispatcher, broken: Any) -> None:
    def refuse(_tensor: torch.Tensor) -> Any:
        raise ValueError("not to be saved")

    call = dispatcher.op("softmax")
    right(call, 4, 8, gradient=True)
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), pytest.raises(ValueError, match="not to be"):
            call(torch.randn(4, 8, requires_grad=True))
    assert not dispatcher.bound("softmax").plans.failures
    assert len(broken.runs) == 3


def test_a_hit_of_another_size_that_fails_is_put_aside(dispatcher: Dispatcher, broken: Any) -> None:
    call = dispatcher.op("softmax")
    for rows in (2, 3, 4, 4):
        right(call, rows, 16)
    broken._behaviour["run_fault"] = OWN["triton"]
    with pytest.warns(DispatchWarning, match=r"a\.broken"):
        right(call, 4, 16)
    for rows in (5, 3, 2):
        right(call, rows, 16)
    tried = broken.tried
    for rows in (2, 3, 4, 5):
        right(call, rows, 16)
    assert broken.tried == tried


def test_a_forced_implementation_that_runs_out_of_memory_says_so(dispatcher: Dispatcher, broken: Any) -> None:
    x = torch.randn(4, 8)
    with dispatcher.using(softmax="a.broken"):
        dispatcher.call("softmax", x)
        broken._behaviour["run_fault"] = SHORT["torch"]
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                dispatcher.call("softmax", x)
        broken._behaviour.clear()
        dispatcher.call("softmax", x)
    assert not dispatcher.bound("softmax").plans.failures


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_pauses_double_up_to_a_limit(told: Any) -> None:
    failures, candidate = Failures(), Candidate(told("a.big"), {})
    failures.clock = lambda: 0.0
    pauses = []
    for _ in range(9):
        failures.put("softmax", 0, candidate, MemoryError(), failures.generation)
        found = failures.find(0, candidate)
        assert found is not None
        pauses.append(found.pause_s)
    assert pauses == [min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) for number in range(9)]


def test_reasons_are_bounded(told: Any) -> None:
    failures, candidate = Failures(most_reasons=3), Candidate(told("a.broken"), {})
    with pytest.warns(DispatchWarning):
        failures.put("softmax", 0, candidate, CompileError("no"), failures.generation)
    for place in range(10):
        failures.put("softmax", place, candidate, CompileError("no"), failures.generation)
    assert [place for place in range(10) if failures.find(place, candidate)] == [7, 8, 9]

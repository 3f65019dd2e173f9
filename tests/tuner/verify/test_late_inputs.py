"""Memory that arrives late, with a writer that copies on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from registry.device import Device
from registry.tuner.verify import late_inputs as module
from registry.tuner.verify.late_inputs import LateInputs, late_fault, late_inputs

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)


class Writer:
    """Copies by the rows of a table at once, and keeps the delays."""

    def __init__(self) -> None:
        self.delays: list[int] = []

    def __call__(self, table: torch.Tensor, count: int, delay_ns: int) -> None:
        self.delays.append(delay_ns)
        assert len(table) == count
        for target, source, size in table.tolist():
            ctypes.memmove(target, source, size)


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    """What writes late on every device."""
    made = Writer()
    monkeypatch.setattr(module, "_writer", lambda _: (made, ""))
    return made


def late(inputs: list[torch.Tensor], outputs: list[torch.Tensor] | None = None) -> LateInputs:
    made = late_inputs(H200, inputs, outputs or [])
    assert made is not None
    return made


def test_inputs_are_spoilt_and_come_back_bit_by_bit_behind_a_delay(writer: Writer) -> None:
    numbers, indices = torch.randn(5, 7), torch.arange(12).view(3, 4).t()
    half = torch.randn(3).to(torch.float8_e4m3fn)
    before = [one.clone() for one in (numbers, indices, half)]
    versions = [one._version for one in (numbers, indices, half)]
    made = late([numbers, indices, half])
    made.spoil()
    assert bool(numbers.isnan().all())
    assert not indices.any()
    assert bool(half.float().isnan().all())
    made.arrive()
    assert numbers.equal(before[0])
    assert indices.equal(before[1])
    assert half.view(torch.uint8).equal(before[2].view(torch.uint8))
    assert versions == [one._version for one in (numbers, indices, half)]
    assert writer.delays == [0, module._DELAY_NS]


@pytest.mark.usefixtures("writer")
def test_what_is_stored_in_outputs_before_they_arrive_is_lost() -> None:
    given, outputs = torch.randn(4), [torch.full((6,), torch.nan), torch.full((5,), 127, dtype=torch.int8)]
    made = late([given], outputs)
    made.spoil()
    for output in outputs:
        output.zero_()
    made.arrive()
    assert bool(outputs[0].isnan().all())
    assert bool((outputs[1] == 127).all())


@pytest.mark.usefixtures("writer")
def test_outputs_of_a_call_without_inputs_are_late() -> None:
    output = torch.full((6,), torch.nan)
    made = late([], [output])
    made.spoil()
    output.zero_()
    made.arrive()
    assert bool(output.isnan().all())


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(
    "layout",
    [lambda one: one.view(8, 8)[:, :3], lambda one: one[:4].expand(3, 4), lambda one: one[::2]],
    ids=["columns", "expanded", "every second"],
)
def test_tensors_with_gaps_and_shared_elements_are_late_as_a_whole(
    layout: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    base = torch.randn(64)
    before, given = base.clone(), layout(base)
    made = late([given])
    made.spoil()
    assert bool(given.isnan().all())
    made.arrive()
    assert base.equal(before)


@pytest.mark.usefixtures("writer")
def test_of_much_memory_the_largest_tensors_are_late_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 4 * (10 + 2 * 64))
    small, large, larger = torch.randn(10), torch.randn(5000), torch.randn(9000)
    before = [one.clone() for one in (small, large, larger)]
    made = late([larger, small], [large])
    made.spoil()
    assert bool(small.isnan().all())
    assert larger.isnan().sum() == 64
    assert bool(larger[[0, -1]].isnan().all())
    assert max(larger.isnan().nonzero().diff(dim=0)) <= 9000 // 15, "some of each part"
    large.fill_(7)
    made.arrive()
    assert small.equal(before[0])
    assert larger.equal(before[2])
    assert (large != 7).sum() == 64
    assert bool((large[[0, -1]] != 7).all())


@pytest.mark.usefixtures("writer")
def test_a_call_without_elements_has_nothing_that_is_late() -> None:
    assert late_inputs(H200, [torch.zeros(0)], [torch.zeros(0, 3)]) is None


def test_devices_that_launch_no_dependents_have_their_inputs_at_once() -> None:
    tensors = [torch.zeros(5)]
    for device in (A100, Device.of("cpu")):
        assert late_inputs(device, tensors) is None
        assert late_fault(device) == ""


def test_a_kernel_that_does_not_compile_is_told_once_and_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    from registry.backends.triton import late_write

    calls = list[torch.device]()

    def fails(device: torch.device) -> None:
        calls.append(device)
        raise RuntimeError("PassManager::run failed\nmore")

    monkeypatch.setattr(late_write, "prepare", fails)
    module._writer.cache_clear()
    try:
        for _ in range(2):
            assert late_fault(H200).endswith("the kernel that writes them fails: RuntimeError: PassManager::run failed")
            assert late_inputs(H200, [torch.zeros(5)]) is None
        assert len(calls) == 1
    finally:
        module._writer.cache_clear()


def test_short_memory_is_no_reason_never_to_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    from registry.backends.triton import late_write

    def short(_: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    module._writer.cache_clear()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(late_write, "prepare", short)
            with pytest.raises(torch.OutOfMemoryError):
                late_fault(H200)
        monkeypatch.setattr(late_write, "prepare", lambda _: None)
        assert late_fault(H200) == ""
    finally:
        module._writer.cache_clear()

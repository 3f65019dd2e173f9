"""Inputs that arrive late, with a writer that copies on the host."""

from __future__ import annotations

import ctypes

import pytest
import torch

from registry.device import Device
from registry.tuner.verify import late_inputs as module
from registry.tuner.verify.late_inputs import LateInputs, late_inputs

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


def test_tensors_are_spoilt_and_come_back_bit_by_bit_behind_a_delay() -> None:
    numbers, indices = torch.randn(5, 7), torch.arange(12).view(3, 4).t()
    half = torch.randn(3).to(torch.float8_e4m3fn)
    before = [one.clone() for one in (numbers, indices, half)]
    versions = [one._version for one in (numbers, indices, half)]
    writer = Writer()
    late = LateInputs([numbers, indices, half], writer)
    late.spoil()
    assert bool(numbers.isnan().all())
    assert not indices.any()
    assert bool(half.float().isnan().all())
    late.arrive()
    assert numbers.equal(before[0])
    assert indices.equal(before[1])
    assert half.view(torch.uint8).equal(before[2].view(torch.uint8))
    assert versions == [one._version for one in (numbers, indices, half)]
    assert writer.delays == [0, module._DELAY_NS]


def test_tensors_with_gaps_without_elements_and_too_large_ones_are_there_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[torch.Tensor] = []
    monkeypatch.setattr(module, "_writer", Writer)
    monkeypatch.setattr(module, "LateInputs", lambda tensors, _: taken.extend(tensors) or "late")
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    small, large, gaps = torch.zeros(5), torch.zeros(50), torch.zeros(4, 4)[:, :2]
    shared, empty = torch.zeros(3).expand(2, 3), torch.zeros(0)
    assert late_inputs(H200, [large, gaps, small, shared, empty]) == "late"
    assert [id(one) for one in taken] == [id(small)]
    assert late_inputs(H200, [large, empty]) is None


def test_devices_that_launch_no_dependents_have_their_inputs_at_once() -> None:
    tensors = [torch.zeros(5)]
    assert late_inputs(A100, tensors) is None
    assert late_inputs(Device.of("cpu"), tensors) is None

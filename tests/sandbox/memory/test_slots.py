"""Slots hold each tensor where its layout says, in memory that the other side cannot take away."""

from __future__ import annotations

import os

import pytest
import torch

from registry.problem import TensorSpec
from registry.sandbox.memory import opening
from registry.sandbox.memory.slots import SlotLayout, Slots, described, filled

SPECS = (
    TensorSpec((3, 5), torch.float32, (8, 1)),
    TensorSpec((4,), torch.bfloat16, (0,)),
    TensorSpec((0, 2), torch.int64, (2, 1)),
    TensorSpec((7,), torch.bool, (1,)),
)


def test_tensors_of_all_slots_lie_apart_with_their_strides() -> None:
    layout = SlotLayout.of_data(SlotLayout(SPECS, 3).as_data())
    shared = opening.made(layout.nbytes, torch.device("cpu"))
    slots = Slots(layout, shared.bytes)
    for number, tensors in enumerate(slots.tensors):
        for spec, tensor in zip(SPECS, tensors, strict=True):
            assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (spec.shape, spec.strides, spec.dtype)
        tensors[0].fill_(number)
        tensors[1][:1].fill_(-number)
    again = Slots(layout, opening.opened(os.dup(shared.descriptor), layout.nbytes, torch.device("cpu")).bytes)
    for number, tensors in enumerate(again.tensors):
        assert torch.equal(tensors[0], torch.full((3, 5), float(number)))
        assert torch.equal(tensors[1], torch.full((4,), -float(number), dtype=torch.bfloat16))
    again.spoil(1, 1)
    assert torch.equal(slots.tensors[1][0], torch.ones(3, 5))
    assert slots.tensors[2][1][0] == -2
    assert slots.tensors[1][1][0] != -1
    shared.close()


def test_shared_memory_cannot_be_cut_off() -> None:
    shared = opening.made(4096, torch.device("cpu"))
    with pytest.raises(PermissionError):
        os.ftruncate(shared.descriptor, 0)
    assert shared.bytes.sum() == 0
    shared.close()


def test_arguments_come_back_with_other_tensors() -> None:
    values = (torch.ones(2), 3, 0.5, None, True, "tanh", torch.bfloat16, (torch.zeros(1), 4))
    ones, zeros = torch.full((2,), 7.0), torch.full((1,), 8.0)
    assert filled(described(values), [ones, zeros]) == (ones, 3, 0.5, None, True, "tanh", torch.bfloat16, (zeros, 4))

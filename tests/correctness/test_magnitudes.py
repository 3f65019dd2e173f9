"""Magnitudes: what NaN, infinity and tensors that are not floating make of them, in few operations."""

from __future__ import annotations

import math

import pytest
import torch

from registry.correctness.magnitudes import largest, magnitude

from .operations import Operations

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 3])
def test_the_largest_absolute_value_of_all_tensors_counts(dtype: torch.dtype, count: int) -> None:
    tensors = [torch.tensor([[0.5, -2.0 - place], [1.0, 0.0]], dtype=dtype) for place in range(count)]
    assert magnitude(tensors) == 1.0 + count
    assert largest([tensor.max() for tensor in tensors]) == 1.0
    assert largest([tensor.min() for tensor in tensors]) == -2.0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_and_infinity_show_wherever_they_are(place: int) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        tensors = [torch.tensor([1.0, 7.0]) for _ in range(3)]
        tensors[place][0] = bad
        for found in (magnitude(tensors), magnitude(tensors[place : place + 1])):
            assert not math.isfinite(found)
            assert math.isnan(found) == math.isnan(bad)
        assert math.isnan(largest([tensor.max() for tensor in tensors])) == math.isnan(bad)


def test_empty_tensors_and_those_that_are_not_floating() -> None:
    assert magnitude([]) == magnitude([torch.empty(0)]) == largest([]) == 0.0
    assert magnitude([torch.empty(0), torch.tensor([-3.0])]) == 3.0
    assert magnitude([torch.tensor([1.0]), torch.tensor([1])]) == math.inf


def test_one_tensor_takes_few_operations() -> None:
    tensor = torch.ones(4)
    with Operations() as counted:
        magnitude([tensor])
    # the extremes, side by side, and on some devices their copy to the host
    assert counted.count <= 3

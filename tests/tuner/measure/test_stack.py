"""Stacked tensors: filled, compared and watched over all at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from registry.problem import TensorSpec
from registry.tuner.measure import stack as stacks
from registry.tuner.measure.stack import Stack, flipped, last_bits

from ...correctness.operations import Operations

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool, torch.complex64)
LAYOUTS = (((3, 5), (5, 1)), ((4, 8), (8, 1)), ((3, 5), (10, 2)), ((4, 5), (0, 1)), ((0, 5), (5, 1)), ((), ()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS)
@pytest.mark.few(14)
def test_what_is_written_is_in_every_tensor_and_nowhere_else(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    spec = TensorSpec(shape, dtype, strides)
    stack = Stack(spec, 3)
    value = torch.zeros(2000).to(dtype).as_strided(shape, strides)
    stack.write(value)
    assert bool(stack.holds(value))
    assert bool(stack.agrees())
    assert bool(stack.margins_untouched())
    assert [TensorSpec.of(tensor) for tensor in stack.tensors] == [spec] * 3
    assert all(torch.equal(tensor, value) for tensor in stack.tensors)


@pytest.mark.parametrize("size", [1000, 999])
def test_one_element_in_one_tensor_tells(size: int) -> None:
    stack = Stack(TensorSpec.contiguous((size,), torch.float32), 4)
    value = torch.randn(size)
    stack.write(value)
    assert bool(stack.holds(value))
    stack.tensors[2][size - 1] = -value[size - 1]
    assert not bool(stack.holds(value))
    assert not bool(stack.agrees())
    assert bool(stack.margins_untouched())


@pytest.mark.parametrize("beside", [-1, 7])
def test_a_write_beside_any_tensor_tells_even_if_it_writes_nan(beside: int) -> None:
    stack = Stack(TensorSpec.contiguous((7,), torch.float32), 3)
    x = stack.tensors[1]
    x.as_strided((1,), (1,), int(x.storage_offset()) + beside).fill_(torch.nan)
    assert not bool(stack.margins_untouched())
    for _ in range(3):
        stack.poison()
        assert bool(stack.margins_untouched())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("size", [7, 8])
def test_nan_and_a_number_alternate_and_change_places(dtype: torch.dtype, size: int) -> None:
    stack = Stack(TensorSpec.contiguous((size,), dtype), 2)
    x = torch.view_as_real(stack.tensors[0]).view(-1) if dtype.is_complex else stack.tensors[0]
    start, end = int(x.storage_offset()), int(x.storage_offset()) + x.numel()
    for nan_after in (True, False, True):
        everything = x.as_strided((end - start + 200,), (1,), start - 100).isnan().tolist()
        assert everything[100 + end - start] == nan_after
        assert all(one != other for one, other in pairwise(everything))
        stack.poison()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_what_fills_a_word_is_nan_or_a_number(dtype: torch.dtype) -> None:
    stack = Stack(TensorSpec.contiguous((5,), dtype), 2)
    for is_nan in (True, False, True):
        assert all(bool((tensor.isnan() == is_nan).all()) for tensor in stack.tensors)
        stack.poison()


@pytest.mark.parametrize(
    ("dtypes", "change"),
    [
        (DTYPES[:4], lambda x: x.mul_(-0.75)),
        (DTYPES[:4], lambda x: x.relu_()),
        (DTYPES[:5], lambda x: x.add_(1)),
        ((torch.bool,), lambda x: x.__ior__(True)),
    ],
)
@pytest.mark.parametrize("size", [7, 8])
def test_who_changes_what_comes_after_a_tensor_is_seen_every_other_time(
    dtypes: tuple[torch.dtype, ...], change: Callable[[torch.Tensor], Any], size: int
) -> None:
    for dtype in dtypes:
        stack = Stack(TensorSpec.contiguous((size,), dtype), 3)
        x = stack.tensors[1]
        seen = []
        for _ in range(4):
            stack.poison()
            change(x.as_strided((1,), (1,), int(x.storage_offset()) + size))
            seen.append(not bool(stack.margins_untouched()))
        assert seen[0], dtype
        assert seen[:2] == seen[2:]


def test_a_write_moves_no_version_counter() -> None:
    stack = Stack(TensorSpec.contiguous((5,), torch.float32), 2)
    versions = [tensor._version for tensor in stack.tensors]
    stack.write(torch.ones(5))
    assert [tensor._version for tensor in stack.tensors] == versions
    assert float(stack.tensors[1].sum()) == 5.0


def test_tensors_are_aligned_and_apart() -> None:
    stack = Stack(TensorSpec.contiguous((1000,), torch.bfloat16), 3)
    addresses = [tensor.data_ptr() for tensor in stack.tensors]
    assert all(address % 16 == addresses[0] % 16 for address in addresses)
    assert all(second - first >= 2000 + 512 for first, second in pairwise(addresses))


def test_values_in_other_memory_layouts_can_be_written() -> None:
    stack = Stack(TensorSpec.contiguous((4, 8), torch.bfloat16), 2)
    for value in (torch.randn(8, 4).to(torch.bfloat16).t(), torch.randn(33).to(torch.bfloat16)[1:].view(4, 8)):
        stack.write(value)
        assert bool(stack.holds(value))
        assert all(torch.equal(tensor, value) for tensor in stack.tensors)
        assert bool(stack.margins_untouched())


FLOATING = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = {1: torch.uint8, 2: torch.int16}


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("part", [1 << 24, 100])
def test_bits_flip_in_all_numbers_but_the_smallest_the_infinite_and_nan(
    dtype: torch.dtype, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_PART", part)
    size = 8 * dtype.itemsize
    patterns = torch.arange(1 << size).to(INTEGERS[dtype.itemsize])
    digits = round(-torch.tensor(torch.finfo(dtype).eps, dtype=torch.float64).log2().item())
    fields = torch.arange(1 << size) >> digits & (1 << size - 1 - digits) - 1
    usual = (fields != 0) & (fields != fields.max())
    for mask in range(1, last_bits(dtype) + 1):
        found = flipped(patterns.view(2, -1), dtype, mask).view(-1)
        assert torch.equal(torch.arange(1 << size)[usual] ^ mask, found.long()[usual] & (1 << size) - 1)
        assert torch.equal(found[~usual], patterns[~usual])


@pytest.mark.parametrize(("shape", "strides"), [*LAYOUTS[:4], ((3, 4, 50), (200, 50, 1))])
@pytest.mark.parametrize("part", [1 << 24, 7])
def test_each_tensor_gets_its_own_mask_and_twice_is_as_before(
    shape: tuple[int, ...], strides: tuple[int, ...], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_PART", part)
    stack = Stack(TensorSpec(shape, torch.float32, strides), 6)
    value = torch.randn(2000).as_strided(shape, strides)
    stack.write(value)
    masks = {5: 3, 0: 3, 2: 9, 3: 3, 1: 3}
    stack.flip(masks)
    bits = [tensor.clone().view(torch.int32) ^ value.clone().view(torch.int32) for tensor in stack.tensors]
    assert [each.unique().tolist() for each in bits] == [[masks.get(number, 0)] for number in range(6)]
    assert bool(stack.margins_untouched())
    stack.flip(masks)
    assert bool(stack.holds(value))


def test_many_tensors_flip_by_as_many_operations_as_one() -> None:
    def operations(copies: int) -> int:
        stack = Stack(TensorSpec.contiguous((64,), torch.bfloat16), copies)
        with Operations() as counted:
            stack.flip(dict.fromkeys(range(copies), 5))
        return counted.count

    assert operations(16) == operations(1)

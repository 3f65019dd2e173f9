"""Comparing memory: by elements, by whole words, and what is neither."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from registry.correctness.bits import as_bits, as_words, change_all, disturb, having_same_bits, same_bits

from ..tiers import one_of_each

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int8, torch.bool, torch.complex64)


def test_signed_zeros_differ_and_nan_equals_itself() -> None:
    assert same_bits(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
    assert same_bits(torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 6), (8, 8, 2), (0, 3)])
@pytest.mark.few(21)
def test_one_element_makes_the_difference(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    one = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    assert same_bits(one, one.clone())
    for place in range(one.numel()):
        other = one.clone()
        other.view(-1)[place] = 0 if bool(one.view(-1)[place]) else 1
        assert not bool(having_same_bits(one, other)), place


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
def test_slices_and_strides_are_compared_as_they_are(offset: int) -> None:
    base = torch.arange(64, dtype=torch.bfloat16)
    part = base[offset : offset + 32]
    assert same_bits(part, part.clone())
    assert (as_words(part) is None) == bool(offset % 4)
    assert same_bits(part[::2], part.clone()[::2])
    assert as_words(part[::2]) is None
    changed = base.clone()
    changed[offset + 33 if offset < 31 else 0] = -1.0  # beside it
    assert same_bits(part, changed[offset : offset + 32])


def test_words_are_the_same_memory() -> None:
    tensor = torch.zeros(4, 4, dtype=torch.float16)
    words = as_words(tensor)
    assert words is not None
    assert words.shape == (4,)
    words[0] = 0x3C003C003C003C00
    assert tensor[0].tolist() == [1.0] * 4


def disturbed(tensor: torch.Tensor, start: int) -> torch.Tensor:
    copy = tensor.clone()
    version = copy._version
    disturb(copy, start)
    assert copy._version == version
    return copy


# of a dtype all sizes, from a start each
@pytest.mark.parametrize(
    ("dtype", "size", "start"),
    one_of_each(
        itertools.product(
            [*DTYPES, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8],
            [0, 1, 2, 61, 62, 1000],
            [0, 1, 59, 60, 1000],
        ),
        lambda dtype, size, start: (dtype, size),
    ),
)
@pytest.mark.few(22)
def test_a_few_elements_but_not_the_first_are_disturbed(dtype: torch.dtype, size: int, start: int) -> None:
    tensor = (torch.arange(size) % 3 - 1).to(dtype)
    other = disturbed(tensor, start)
    assert other.shape == tensor.shape
    assert other.dtype == dtype
    changed = (as_bits(other) != as_bits(tensor)).view(size, -1).any(1) if size else torch.zeros(0)
    assert (size + 60) // 61 - 1 <= int(changed.sum()) <= (size + 60) // 61
    assert bool(changed.any()) == (size > 0)
    assert size < 2 or not bool(changed[0])


def test_disturbed_numbers_are_finite_of_similar_size_and_at_other_places_from_another_start() -> None:
    numbers = torch.tensor([1.0, 0.0, 0.5, 8.0, -8.0, math.inf, -math.inf, math.nan])
    expected = [0.5, 1.0, 1.5, 4.0, -4.0, 1.0, 1.0, 1.0]
    for start in range(7):
        other = disturbed(numbers, start)
        (place,) = (as_bits(other) != as_bits(numbers)).nonzero().flatten().tolist()
        assert place == start + 1
        assert float(other[place]) == expected[place]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
def test_all_elements_are_changed(dtype: torch.dtype) -> None:
    tensor = (torch.arange(100) % 3).to(dtype)
    other = tensor.clone()
    change_all(other)
    assert bool((as_bits(other) != as_bits(tensor)).view(100, -1).any(1).all())
    assert other._version == tensor.clone()._version


def test_every_row_is_disturbed_alike_also_where_rows_are_apart() -> None:
    room = torch.zeros(5, 100)
    disturb(room[:, :70], 3)
    assert room.nonzero().tolist() == [[row, place] for row in range(5) for place in (4, 65)]

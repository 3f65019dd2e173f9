"""Comparing memory: by elements, by whole words, and what is neither."""

from __future__ import annotations

import math

import pytest
import torch

from registry.bits import as_words, having_same_bits, same_bits

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int8, torch.bool, torch.complex64)


def test_signed_zeros_differ_and_nan_equals_itself() -> None:
    assert same_bits(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
    assert same_bits(torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 6), (8, 8, 2), (0, 3)])
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

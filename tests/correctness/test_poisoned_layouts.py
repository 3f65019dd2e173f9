"""Layouts, and poison beside tensors: what reads it finds NaN, what changes it is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.correctness.bits import as_bits
from registry.correctness.expanded import EXPANDED
from registry.correctness.poisoned_layouts import (
    LAYOUTS,
    MARGIN,
    Poison,
    PoisonedLayout,
    Surrounded,
    adds_nothing,
    all_laid_out,
    laid_out,
    laid_out_within,
    surrounded,
)
from registry.problem import TensorSpec

from ..tiers import one_of_each
from .operations import Operations

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SPECS = (((), ()), ((7,), (1,)), ((8,), (1,)), ((2, 3), (6, 2)), ((4, 5), (0, 1)), ((0, 5), (5, 1)), ((3, 4), (5, 1)))
CHANGES: list[tuple[torch.dtype, Callable[[torch.Tensor], Any]]] = [
    *((dtype, lambda x: x.mul_(-0.75)) for dtype in FLOATS),
    *((dtype, lambda x: x.add_(1)) for dtype in (*FLOATS, *INTEGERS)),
    *((dtype, lambda x: x.relu_()) for dtype in (*FLOATS[:-1], *INTEGERS[:-1])),
    *((dtype, lambda x: x.mul_(3)) for dtype in INTEGERS),
    (torch.bool, lambda x: x.__ior__(True)),
    (torch.bool, lambda x: as_bits(x).__ior__(1)),
    (torch.bool, lambda x: x.logical_not_()),
]


def beside(found: Surrounded) -> list[torch.Tensor]:
    """The elements directly before and after the tensor."""
    tensor = found.tensor
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    start = int(tensor.storage_offset())
    return [found.base[start - 1 : start], found.base[start + max(span, 0) : start + max(span, 0) + 1]]


@pytest.mark.parametrize(
    ("dtype", "shape", "strides"),
    # of each shape four widths of elements
    one_of_each(
        [(dtype, *spec) for dtype in (*FLOATS, *FLOAT8, *INTEGERS, torch.bool) for spec in SPECS],
        lambda dtype, shape, strides: (dtype.itemsize, shape, strides),
    ),
)
def test_the_tensors_own_elements_may_be_written_and_no_other(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    found = surrounded(TensorSpec(shape, dtype, strides))
    assert bool(found.untouched())
    inside = torch.zeros(found.base.shape, dtype=torch.bool)
    inside.as_strided(shape, strides, MARGIN).fill_(True)
    for place in range(len(inside)):
        as_bits(found.base)[place] += 3
        assert bool(found.untouched()) == bool(inside[place]), place
        as_bits(found.base).copy_(found.pristine)
    assert bool(found.untouched())


@pytest.mark.parametrize(
    ("dtype", "change", "size"),
    one_of_each([(*case, size) for case in CHANGES for size in (7, 8)], lambda dtype, change, size: (dtype, change)),
)
def test_what_is_next_to_a_tensor_shows_who_changes_it(
    dtype: torch.dtype, change: Callable[[torch.Tensor], Any], size: int
) -> None:
    found = surrounded(TensorSpec((size,), dtype, (1,)))
    for element in beside(found):
        as_bits(found.base).copy_(found.pristine)
        change(element)
        assert not bool(found.untouched())


LARGE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "row-major": ((3, 20_001), (20_001, 1)),
    "transposed": ((20_001, 3), (1, 20_001)),
    "sliced": ((3, 20_001), (20_003, 1)),
    "expanded": ((3, 40_000), (0, 1)),
}


@pytest.mark.parametrize(
    ("dtype", "shape", "strides"),
    one_of_each(
        [(dtype, *spec) for dtype in (torch.float32, torch.bfloat16, torch.int8) for spec in LARGE.values()],
        lambda dtype, shape, strides: (shape, strides),
    ),
)
@pytest.mark.parametrize("offset", [MARGIN, MARGIN + 1])
def test_a_large_tensor_is_surrounded_as_a_small_one_is(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    for nan_beside in (False, True):
        found = surrounded(TensorSpec(shape, dtype, strides), offset, nan_beside=nan_beside)
        small = surrounded(TensorSpec((7,), dtype, (1,)), offset, nan_beside=nan_beside)
        size, after = len(found.base), 2 * MARGIN - offset
        assert torch.equal(as_bits(found.base)[:offset], as_bits(small.base)[:offset])
        if strides != (20_003, 1):  # between its rows the poison goes on
            assert torch.equal(as_bits(found.base)[-after:], as_bits(small.base)[-after:])
        poisoned = as_bits(found.base).clone()
        inside = torch.zeros(size, dtype=torch.bool)
        inside.as_strided(shape, strides, offset).fill_(True)
        assert bool((as_bits(found.tensor) == Poison.of(dtype).nan).all())
        for place in (
            0,
            offset - 1,
            offset,
            offset + 20_000,
            offset + 20_001,
            size - after - 1,
            size - after,
            size - 1,
        ):
            as_bits(found.base)[place] += 3
            assert bool(found.untouched()) == bool(inside[place]), place
            found.poison()
            assert torch.equal(as_bits(found.base), poisoned)


def test_a_large_tensor_without_gaps_takes_no_masks() -> None:
    for shape, strides in (LARGE["row-major"], LARGE["transposed"]):
        found = surrounded(TensorSpec(shape, torch.float32, strides))
        assert found.nbytes <= found.tensor.nbytes + 4 * MARGIN * 4
    complex_one = surrounded(TensorSpec((40_000,), torch.complex64, (1,)))
    assert bool(complex_one.untouched())
    complex_one.base[MARGIN - 1] += 1
    assert not bool(complex_one.untouched())


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8], ids=str)
def test_nan_is_next_to_what_is_read_only_and_near_everything(dtype: torch.dtype) -> None:
    for nan_beside in (False, True):
        found = surrounded(TensorSpec((7,), dtype, (1,)), nan_beside=nan_beside)
        assert [bool(element.isnan()) for element in beside(found)] == [nan_beside] * 2
        base = found.base
        for margin in (base[:MARGIN], base[MARGIN + 7 :]):
            assert 0.4 < float(margin.isnan().float().mean()) < 0.6
        assert bool(found.tensor.isnan().all())
    assert bool(beside(laid_out_within(torch.ones(7), "contiguous", nan_beside=True))[1].isnan())


def test_two_elements_of_poison_fill_a_word() -> None:
    for dtype in (*FLOATS, *FLOAT8, *INTEGERS, torch.bool):
        poison = Poison.of(dtype)
        assert poison.nan != poison.number
        word = torch.tensor([poison.word(poison.nan, poison.number)]).view(torch.uint8).tolist()
        for element in range(0, 8, poison.itemsize):
            expected = (poison.nan, poison.number)[element // poison.itemsize % 2]
            assert bytes(word[element : element + poison.itemsize]) == expected.to_bytes(poison.itemsize, "little")


STRIDES: dict[PoisonedLayout, tuple[int, ...]] = {
    "contiguous": (12, 4, 1),
    "unaligned": (12, 4, 1),
    "sliced": (16, 5, 1),
    "transposed": (12, 1, 3),
    "strided": (36, 11, 2),
    "strided-dense": (36, 11, 2),
    "dense-strided": (12, 4, 1),
    "unlike": (12, 4, 1),
}


def test_layouts_are_what_they_are_called() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    assert set(STRIDES) == set(LAYOUTS) - EXPANDED
    for layout, strides in STRIDES.items():
        spec = TensorSpec.of(laid_out(x, layout))
        assert spec.strides == strides
        assert spec.alignment == (4 if layout == "unaligned" else 16)
        assert spec.is_contiguous == (layout in {"contiguous", "unaligned", "dense-strided", "unlike"})
        assert torch.equal(laid_out(x, layout), x)
        assert torch.equal(laid_out(x.mT, layout), x.mT)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout not in EXPANDED])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (3, 0), (0, 3), (1, 5), (5, 1), (2, 1, 3)])
@pytest.mark.few(21)
def test_any_shape_can_be_laid_out(layout: PoisonedLayout, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    found = laid_out_within(x, layout)
    assert torch.equal(found.tensor, x)
    assert bool(found.untouched())
    as_contiguous = TensorSpec.of(laid_out(x, "contiguous")) == TensorSpec.of(found.tensor)
    if adds_nothing(layout, [TensorSpec.of(x)]):
        assert layout in {"strided-dense", "dense-strided", "unlike"} or (
            layout in {"sliced", "transposed"} and as_contiguous
        )


def test_a_pitch_that_is_no_multiple_of_the_step_shows_who_takes_it_for_one() -> None:
    x = torch.randn(5, 7)
    for layout in ("sliced", "strided"):
        found = laid_out(x, layout)
        step = found.stride(-1)
        assert not torch.equal(found.as_strided((5, 7), (7 * step, step)), x)


def test_surroundings_notice_a_write_between_the_elements() -> None:
    found = surrounded(TensorSpec((2, 3), torch.int32, (6, 2)))
    found.tensor.fill_(0)
    assert bool(found.untouched())
    found.tensor.as_strided((1,), (1,), int(found.tensor.storage_offset()) + 1).fill_(0)
    assert not bool(found.untouched())


def test_every_other_tensor_of_a_call_is_strided_by_steps_of_its_own() -> None:
    values = [torch.randn(5, 7) for _ in range(4)]
    dense: dict[PoisonedLayout, set[int]] = {"strided-dense": {1, 3}, "dense-strided": {0, 2}}
    for layout, places in dense.items():
        found = all_laid_out((values[0], 3, values[1:]), layout)
        tensors = [found[0], *found[2]]
        assert found[1] == 3
        assert all(map(torch.equal, tensors, values))
        assert {place for place, one in enumerate(tensors) if one.is_contiguous()} == places
        assert len({one.stride() for one in tensors}) == 3
        assert not adds_nothing(layout, [TensorSpec.of(one) for one in tensors])


def test_rows_of_unlike_tensors_are_dense_and_lie_by_strides_of_their_own() -> None:
    values = tuple(torch.randn(2, 3, 4, 8) for _ in range(6))
    found = all_laid_out(values, "unlike")
    assert all(map(torch.equal, found, values))
    assert found[0].is_contiguous()
    assert len({one.stride() for one in found}) == 6
    assert all(one.stride(-1) == 1 and one.data_ptr() % 16 == 0 for one in found)
    assert all(stride % 4 == 0 for one in found for stride in one.stride()[:-1])
    # the order of the dimensions before the last, from the one whose steps are largest
    orders = [tuple(sorted(range(3), key=lambda dim: -one.stride(dim))) for one in found]
    assert orders == [(0, 1, 2), (1, 2, 0), (2, 0, 1)] * 2
    assert not adds_nothing("unlike", [TensorSpec.of(one) for one in found])
    assert adds_nothing("unlike", [TensorSpec.of(torch.ones(3, 4)), TensorSpec.of(torch.ones(4))])


def test_a_look_beside_a_large_tensor_takes_three_operations() -> None:
    found = surrounded(TensorSpec.contiguous((40_000,), torch.float32))
    with Operations() as counted:
        is_untouched = found.untouched()
    assert counted.count == 3
    assert bool(is_untouched)

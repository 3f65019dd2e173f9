"""Elements that change from sample to sample: one in each tensor, within what it holds, and put back exactly."""

from __future__ import annotations

import pytest
import torch

from registry.correctness.bits import as_bits
from registry.problem import TensorSpec
from registry.tuner.measure.rotation import Rotation
from registry.tuner.measure.secret_elements import FlippedElements, SecretElements
from registry.tuner.measure.stack import Stack, last_bits

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn)
OTHERS = (torch.int32, torch.bool, torch.complex64)
LAYOUTS = (((3, 5), (5, 1)), ((4, 8), (8, 1)), ((3, 5), (10, 2)), ((4, 5), (0, 1)), ((0, 5), (5, 1)), ((), ()))
COUNT = 3


def filled(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Stack, torch.Tensor]:
    stack = Stack(TensorSpec(shape, dtype, strides), COUNT)
    value = torch.randn(200, generator=torch.Generator().manual_seed(1)).to(dtype).as_strided(shape, strides)
    stack.write(value)
    return stack, value


def changed(stack: Stack, value: torch.Tensor) -> list[int]:
    """Elements of each tensor that are not those of ``value``."""
    return [int((tensor.double() != value.double()).sum()) for tensor in stack.tensors]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS)
@pytest.mark.few(8)
def test_each_change_is_one_element_of_each_tensor_and_goes_back(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    stack, value = filled(dtype, shape, strides)
    elements = SecretElements(stack, torch.Generator().manual_seed(2))
    # an element of an expanded tensor is one of every row, and one number alone has no other to become
    most = shape[0] if strides == (0, 1) else 1
    versions = [tensor._version for tensor in stack.tensors]
    for _ in range(70):
        elements.change()
        assert all(count <= most for count in changed(stack, value))
        assert bool(stack.margins_untouched())
        if value.numel() > 1:
            assert any(changed(stack, value))
            extremes = {float(value.double().min()), float(value.double().max())}
            new = torch.stack([tensor.double() for tensor in stack.tensors])
            assert set(new[new != value.double().expand_as(new)].tolist()) <= extremes
    elements.restore()
    assert bool(stack.holds(value))
    assert [tensor._version for tensor in stack.tensors] == versions


@pytest.mark.parametrize("dtype", OTHERS)
def test_what_is_no_floating_number_stays(dtype: torch.dtype) -> None:
    stack, value = filled(dtype, (3, 5), (5, 1))
    SecretElements(stack, torch.Generator()).change()
    assert bool(stack.holds(value))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS[:3])
@pytest.mark.few(6)
def test_an_independent_element_becomes_another_of_its_tensor(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    stack = Stack(TensorSpec(shape, dtype, strides), COUNT)
    drawn = torch.randint(2 if dtype == torch.bool else 100, (200,), generator=torch.Generator().manual_seed(1))
    value = drawn.to(dtype).as_strided(shape, strides)
    stack.write(value)
    elements = SecretElements(stack, torch.Generator().manual_seed(2), independent=True)
    there, changes = set(value.flatten().tolist()), 0
    for _ in range(70):
        elements.change()
        found = changed(stack, value)
        assert max(found) <= 1
        changes += sum(found)
        assert {each for tensor in stack.tensors for each in tensor.flatten().tolist()} <= there
        assert bool(stack.margins_untouched())
    # a few drawn ones may equal what is there
    assert changes > 70 * COUNT * 0.7
    elements.restore()
    assert bool(stack.holds(value))


def test_independent_integers_are_moved_and_go_back_and_others_stay() -> None:
    values = torch.arange(40), torch.arange(40)
    rotation = Rotation(values, COUNT, [1])
    rotation.show("rising", values)
    for _ in range(40):
        rotation.move(range(COUNT), dict(enumerate(values)))
        rotation.change([0, 1])
        for own, independent in rotation.copies:
            assert torch.equal(own, values[0])
            assert set(independent.tolist()) <= set(range(40))
    assert not any(torch.equal(copy[1], values[1]) for copy in rotation.copies)
    rotation.restore()
    assert all(torch.equal(copy[1], values[1]) for copy in rotation.copies)


def test_numbers_that_are_not_finite_are_no_extremes() -> None:
    stack = Stack(TensorSpec.contiguous((6,), torch.float32), COUNT)
    value = torch.tensor([torch.nan, -torch.inf, 1.0, 2.0, torch.inf, 3.0])
    stack.write(value)
    elements = SecretElements(stack, torch.Generator().manual_seed(3))
    seen = set()
    for _ in range(100):
        elements.change()
        for tensor in stack.tensors:
            seen |= {float(new) for new, old in zip(tensor, value, strict=True) if new != old and not new.isnan()}
    assert seen == {1.0, 3.0}


def test_places_differ_from_tensor_to_tensor_and_reach_every_element() -> None:
    stack, value = filled(torch.float32, (4, 8), (8, 1))
    elements = SecretElements(stack, torch.Generator().manual_seed(4))
    reached = torch.zeros(COUNT, 4, 8, dtype=torch.bool)
    together = 0
    for _ in range(600):
        elements.change()
        found = torch.stack([tensor != value for tensor in stack.tensors])
        together += bool((found[0] & found[1] & found[2]).any())
        reached |= found
    assert bool(reached.all())
    assert together < 30


def without_last_bits(tensor: torch.Tensor) -> list[float]:
    """The numbers, sorted, without the bits in which moved ones may differ from what they were."""
    bits = as_bits(tensor.contiguous())
    return sorted((bits & ~last_bits(tensor.dtype)).view(tensor.dtype).double().flatten().tolist())


def test_extremes_are_those_of_the_values_that_are_shown() -> None:
    rotation = Rotation((torch.zeros(10),), COUNT)
    shown = {"small": torch.arange(10.0), "large": torch.arange(10.0) + 100, "none": torch.full((10,), torch.nan)}
    for name in ("small", "large", "small", "none", "large"):
        values = shown[name]
        rotation.show(name, (values,))
        for again in (False, True):
            rotation.move(range(COUNT), {0: values}, again=again)
            there = [copy[0].clone() for copy in rotation.copies]
            rotation.change([0])
            changed = [(copy[0] != was) & ~was.isnan() for copy, was in zip(rotation.copies, there, strict=True)]
            assert [int(each.sum()) for each in changed] == [int(name != "none")] * COUNT
            extremes = without_last_bits(torch.stack([values.min(), values.max()]))
            for (copy,), where in zip(rotation.copies, changed, strict=True):
                assert {*without_last_bits(copy[where])} <= {*extremes}


def test_places_that_are_left_are_used_where_elements_have_moved() -> None:
    value = torch.arange(40.0)
    rotation = Rotation((value,), COUNT)
    rotation.show("rising", (value,))
    for _ in range(80):
        rotation.move(range(COUNT), {0: value})
        rotation.change([0])
        rotation.change([0])
    rotation.restore()
    assert all(torch.equal(copy[0], value) for copy in rotation.copies)


def test_what_is_overwritten_meanwhile_is_not_put_back() -> None:
    rotation = Rotation((torch.zeros(10), 3.0), COUNT)
    rotation.show("rising", (torch.arange(10.0), 3.0))
    for _ in range(3):
        rotation.change([0, 1])
        assert not all(bool(flag) for flag in rotation.unchanged((torch.arange(10.0), 3.0), [0]).values())
        rotation.show("falling", (-torch.arange(10.0), 3.0))
        assert bool(rotation.unchanged((-torch.arange(10.0), 3.0), [0])[0])
        rotation.change([0])
        rotation.show("falling", (-torch.arange(10.0), 3.0))
        assert bool(rotation.unchanged((-torch.arange(10.0), 3.0), [0])[0])
        rotation.spoil()
        rotation.restore()
        assert all(bool(copy[0].isnan().all()) for copy in rotation.copies)
        rotation.show("rising", (torch.arange(10.0), 3.0))


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS[:3])
@pytest.mark.few(8)
def test_a_flipped_element_is_another_plausible_number(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    stack, value = filled(dtype, shape, strides)
    FlippedElements(stack, torch.Generator().manual_seed(5)).change()
    assert bool(stack.margins_untouched())
    for tensor in stack.tensors:
        differ = tensor.contiguous().view(torch.uint8) != value.contiguous().view(torch.uint8)
        assert 0 < int(differ.view(value.numel(), -1).any(1).sum()) == 1
        if dtype in FLOATS:
            assert bool(tensor.double().isfinite().all())
            ratio = (tensor.double() / value.double()).abs()
            assert float(ratio.max()) <= 4.0
            assert float(ratio.min()) >= 0.25


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS)
@pytest.mark.few(8)
def test_moved_elements_are_others_in_each_copy_and_go_back(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    value = torch.arange(200).to(dtype).as_strided(shape, strides)
    rotation = Rotation((value, 3.0), COUNT)
    rotation.show("rising", (value, 3.0))
    copies = [copy[0] for copy in rotation.copies]
    versions = [copy._version for copy in copies]
    before = without_last_bits(value)

    def moved() -> list[bool]:
        return [not bool((copy.double() == value.double()).all()) for copy in copies]

    rotation.move([0, 2], {0: value})
    rotation.change([0])
    rotation.move([0, 1, 2], {0: value}, again=False)
    for _ in range(9):
        rotation.move([1], {0: value})
    assert all(without_last_bits(copy) == before for copy in copies)
    exactly = sorted(value.double().flatten().tolist())
    # zeros stay what they are
    assert not any(exactly) or not any(sorted(copy.double().flatten().tolist()) == exactly for copy in copies)
    # few elements may come back to where they were
    assert len({*before}) < 20 or any(moved())
    there = [copy.clone() for copy in copies]
    rotation.change([0])
    rotation.rewrite([0, 1], {0: value})
    assert all(bool((copy.double() == was.double()).all()) for copy, was in zip(copies, there, strict=True))
    rotation.change([0])
    rotation.put_back([2], {0: value})
    assert not moved()[2]
    assert bool((copies[0].double() == there[0].double()).all())
    rotation.change([0])
    rotation.restore()
    assert not any(moved())
    assert [copy._version for copy in copies] == versions

"""Few operations for many tensors on a GPU: they compute what they do on a CPU, for all sizes of parts."""

from __future__ import annotations

import math

import pytest
import torch

from registry.contracts import SOFTMAX
from registry.correctness.bounds import bounds_of, holding
from registry.correctness.magnitudes import largest, magnitude
from registry.correctness.numerics import own_error, reference64
from registry.correctness.poisoned_layouts import surrounded
from registry.problem import TensorSpec
from registry.tuner.measure import stack as stacks
from registry.tuner.measure.rotation import Rotation
from registry.tuner.measure.stack import Stack, flipped, last_bits

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

CUDA = torch.device("cuda")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("part", [1 << 24, 1000])
def test_bits_flip_as_on_a_cpu(dtype: torch.dtype, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_PART", part)
    words = torch.randint(-(1 << 63), (1 << 63) - 1, (4096,))
    bits = words.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    for mask in {1, last_bits(dtype)}:
        assert torch.equal(flipped(bits.to(CUDA), dtype, mask).cpu(), flipped(bits, dtype, mask))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 16, 64])
@pytest.mark.parametrize("size", [1, 1000, 1 << 16])
def test_moved_copies_go_back(dtype: torch.dtype, count: int, size: int) -> None:
    value = torch.randn(size, device=CUDA).to(dtype)
    value[::7] = 0
    rotation = Rotation((value,), count)
    rotation.show("these", (value,))
    for _ in range(3):
        rotation.move(range(count), {0: value})
        rotation.change([0])
        rotation.rewrite(range(0, count, 2), {0: value})
    rotation.restore()
    assert bool(rotation.unchanged((value,), [0])[0])
    # what a candidate has written must not be put back
    if size > 1:
        rotation.move(range(count), {0: value})
        rotation.copies[-1][0][size // 2] = 7.0
        rotation.restore()
        assert not bool(rotation.unchanged((value,), [0])[0])


def test_extremes_show_nan_and_infinity() -> None:
    for bad in (math.nan, math.inf, -math.inf, 3.0):
        tensors = [torch.ones(70_000, device=CUDA) for _ in range(3)]
        tensors[1][69_999] = bad
        expected = abs(bad)
        for found in (magnitude(tensors), magnitude(tensors[1:2])):
            assert found == expected or (math.isnan(found) and math.isnan(bad))
    assert largest([torch.tensor(-2.0, device=CUDA)]) == -2.0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 37, 4096])
def test_bounds_hold_the_rounded_reference_and_not_zeros(dtype: str, rows: int) -> None:
    problem = SOFTMAX.problem_of({"rows": rows, "cols": 1024, "dtype": dtype})
    values = SOFTMAX.draw(problem, SOFTMAX.kinds[0], torch.Generator(CUDA).manual_seed(3))
    reference = reference64(SOFTMAX, values)
    found = bounds_of(SOFTMAX, problem, values, reference, own_error(SOFTMAX, problem, values, reference))
    assert all(map(bool, holding(found, [reference[0].to(values[0].dtype)])))
    assert not any(map(bool, holding(found, [torch.zeros_like(values[0])])))
    assert bool((found[0].low <= found[0].high).all())


@pytest.mark.parametrize("place", [-1, 40_000])
def test_a_write_beside_a_large_tensor_shows(place: int) -> None:
    found = surrounded(TensorSpec((40_000,), torch.bfloat16, (1,), CUDA))
    assert bool(found.untouched())
    found.tensor.as_strided((1,), (1,), int(found.tensor.storage_offset()) + place).fill_(1.0)
    assert not bool(found.untouched())


def test_margins_of_flipped_tensors_stay() -> None:
    stack = Stack(TensorSpec((33, 40), torch.float32, (64, 1), CUDA), 8)
    stack.write(torch.randn(33, 64, device=CUDA)[:, :40])
    before = stack.bits.clone()
    masks = {0: 1, 3: 5, 4: 5, 7: 1}
    stack.flip(masks)
    assert bool(stack.margins_untouched())
    assert not torch.equal(stack.bits, before)
    stack.flip(masks)
    assert torch.equal(stack.bits, before)

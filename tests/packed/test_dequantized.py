"""Packed weights of random formats against a slow, obvious dequantisation in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.packed import CODEBOOKS, PackedWeight, dequantized, groups, pack, quantize, words

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def slow(weight: PackedWeight) -> Any:
    """``[N, K]``, element by element: the bits, the group, the level."""
    n, k = weight.shape
    count, mask = 32 // weight.bits, 2**weight.bits - 1
    middle = {1: 0.5, 2: 2.0, 4: 8.0, 8: 128.0}[weight.bits]
    qweight = weight.qweight.numpy().view(np.uint32)
    scales = weight.scales.double().numpy()
    zeros = None if weight.zeros is None else weight.zeros.double().numpy()
    levels = np.zeros((n, k))
    for row in range(k):
        group = row // weight.group_size if weight.g_idx is None else int(weight.g_idx[row])
        for column in range(n):
            q = (int(qweight[row // count, column]) >> (weight.bits * (row % count))) & mask
            if weight.codebook is not None:
                levels[column, row] = CODEBOOKS[weight.codebook][q] * scales[group, column]
            else:
                zero = middle if zeros is None else zeros[group, column]
                levels[column, row] = (q - zero) * scales[group, column]
    return levels


@st.composite
def weights(draw: st.DrawFn) -> PackedWeight:
    """Any format that there is, with random words, scales and zero points."""
    k, n, bits = draw(st.integers(1, 90)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4, 8]))
    group_size, dtype = draw(st.sampled_from([16, 32, 64, 128, 256, k])), draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from(["none", "integer", "float", *(["nf4"] if bits == 4 else [])]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    count = groups(k, group_size)
    q = torch.randint(0, 2**bits, (k, n), generator=generator)
    scales = torch.randn(count, n, generator=generator).to(dtype)
    zeros = torch.randint(0, 2**bits + 1, (count, n), generator=generator).float()
    zeros = zeros + torch.rand(count, n, generator=generator) if kind == "float" else zeros.to(dtype)
    order = (torch.arange(k, dtype=torch.int32) // group_size)[torch.randperm(k, generator=generator)]
    return PackedWeight(
        pack(q, bits),
        scales,
        None if kind in ("none", "nf4") else zeros,
        bits,
        group_size,
        (n, k),
        g_idx=order if kind != "nf4" and draw(st.booleans()) else None,
        codebook="nf4" if kind == "nf4" else None,
    )


@settings(max_examples=60, deadline=None)
@given(weight=weights())
def test_any_format_is_dequantized_as_its_definition_says(weight: PackedWeight) -> None:
    expected = slow(weight)
    exact = dequantized(
        weight.qweight,
        weight.scales,
        weight.zeros,
        weight.group_size,
        torch.float64,
        bits=weight.bits,
        k=weight.shape[1],
        g_idx=weight.g_idx,
        codebook=weight.codebook,
    )
    np.testing.assert_array_equal(exact.T.numpy(), expected)
    rounded = weight.dequantize()
    assert rounded.dtype == weight.dtype
    # one rounding to float32 in the difference, one in the product, one to the dtype
    slack = torch.finfo(weight.dtype).eps / 2 + 2**-23
    tiny = torch.finfo(weight.dtype).smallest_normal * torch.finfo(weight.dtype).eps
    assert (
        np.abs(rounded.double().numpy() - expected) <= slack * np.abs(expected) + tiny + 2**-16 * (expected == 0)
    ).all()


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 6),
    k=st.integers(1, 150),
    format_=st.sampled_from([(2, None), (4, None), (8, None), (4, "nf4")]),
    group_size=st.sampled_from([16, 32, 64, 128, 256, -1]),
    symmetric=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_a_rounded_weight_is_within_half_a_step(
    n: int, k: int, format_: Any, group_size: int, symmetric: bool, dtype: torch.dtype, seed: int
) -> None:
    bits, codebook = format_
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)
    packed = quantize(weight, bits, group_size, symmetric, codebook)
    size = k if group_size == -1 else group_size
    assert packed.qweight.shape == (words(k, bits), n)
    assert packed.scales.shape == (groups(k, size), n)
    assert (packed.zeros is None) == (symmetric or codebook is not None)
    step = packed.scales.double().numpy().repeat(size, 0)[:k].T
    widest = np.diff(CODEBOOKS["nf4"]).max() if codebook else 1.0
    error = np.abs(slow(packed) - weight.double().numpy())
    # rounding scales to the dtype moves the ends of the range by half a rounding of all its steps
    slack = widest / 2 + 2**bits * torch.finfo(dtype).eps
    assert (error <= slack * step).all()


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 6),
    k=st.integers(2, 150),
    group_size=st.sampled_from([16, 64, -1]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_one_bit_has_the_best_two_levels_of_a_group(
    n: int, k: int, group_size: int, dtype: torch.dtype, seed: int
) -> None:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)
    size = k if group_size == -1 else group_size
    signs, means = slow(quantize(weight, 1, group_size, symmetric=True)), slow(quantize(weight, 1, group_size))
    for start in range(0, k, size):
        group = weight[:, start : start + size].double().numpy()
        level = np.abs(group).mean(1, keepdims=True)
        np.testing.assert_allclose(signs[:, start : start + size], np.where(group >= 0, level, -level), rtol=1e-2)
        upper = group >= group.mean(1, keepdims=True)
        for row, above in zip(range(n), upper, strict=True):
            if 0 < above.sum() < above.size:
                levels = np.where(above, group[row][above].mean(), group[row][~above].mean())
                np.testing.assert_allclose(means[row, start : start + size], levels, rtol=2e-2, atol=2e-2)


def test_groups_of_one_value_are_exact_in_one_bit() -> None:
    weight = torch.tensor([[0.5] * 16 + [0.0] * 16 + [-3.0] * 16])
    assert torch.equal(quantize(weight, 1, 16).dequantize(), weight)

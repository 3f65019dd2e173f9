"""Packed weights: the layout, the rounding, the errors, and what survives a round trip."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from registry.errors import InvalidArgumentError
from registry.packed import PackedWeight, pack, quantize, unpack


def weight(n: int = 24, k: int = 256, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: PackedWeight, other: PackedWeight) -> bool:
    zeros = one.zeros is other.zeros is None or (
        one.zeros is not None and other.zeros is not None and torch.equal(one.zeros, other.zeros)
    )
    return (
        zeros
        and torch.equal(one.qweight, other.qweight)
        and torch.equal(one.scales, other.scales)
        and (one.bits, one.group_size, one.shape, one.layout)
        == (other.bits, other.group_size, other.shape, other.layout)
    )


@settings(max_examples=25, deadline=None)
@given(words=st.integers(1, 12), n=st.integers(1, 9), seed=st.integers(0, 1000))
def test_unpack_undoes_pack(words: int, n: int, seed: int) -> None:
    q = torch.randint(0, 16, (8 * words, n), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    assert torch.equal(unpack(pack(q)), q)


def test_element_k_stands_at_bit_4_times_k_mod_8_of_word_k_div_8() -> None:
    for k in (0, 3, 7, 8, 15):
        q = torch.zeros(16, 2, dtype=torch.int32)
        q[k, 1] = 13
        words = pack(q).to(torch.int64) & 0xFFFFFFFF
        assert words[k // 8, 1].item() == 13 << (4 * (k % 8))
        assert words.sum().item() == words[k // 8, 1].item()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 20),
    groups=st.integers(1, 4),
    group_size=st.sampled_from([32, 64, 128, -1]),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_dequantized_weights_are_within_half_a_step(
    n: int, groups: int, group_size: int, symmetric: bool, dtype: torch.dtype, seed: int
) -> None:
    k = groups * (group_size if group_size > 0 else 40)
    original = weight(n, k, dtype, seed)
    packed = quantize(original, group_size=group_size, symmetric=symmetric)
    step = packed.scales.double().T.repeat_interleave(packed.group_size, 1)
    # half a step; rounding scales to the dtype moves the ends of the range by up to 8 roundings of a step
    slack = 0.5 + 16 * torch.finfo(dtype).eps
    error = (packed.dequantize().double() - original.double()).abs()
    assert (error <= slack * step + torch.finfo(dtype).eps * original.double().abs()).all()
    assert packed.dequantize().dtype == dtype
    assert (packed.zeros is None) == symmetric


@pytest.mark.parametrize("symmetric", [False, True])
def test_quantizing_a_dequantized_weight_changes_nothing_much(symmetric: bool) -> None:
    once = quantize(weight(), symmetric=symmetric).dequantize()
    twice = quantize(once, symmetric=symmetric).dequantize()
    torch.testing.assert_close(twice, once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
def test_groups_of_zeros_stay_zero(symmetric: bool) -> None:
    original = weight(4, 256, torch.float16)
    original[:, :128] = 0
    assert not quantize(original, symmetric=symmetric).dequantize()[:, :128].any()


def test_a_weight_larger_than_a_chunk_is_quantized_as_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize(weight(37, 256))
    expected = whole.dequantize()
    monkeypatch.setattr("registry.packed.CHUNK", 1000)
    pieces = quantize(weight(37, 256))
    assert same(whole, pieces)
    assert torch.equal(pieces.dequantize(), expected)


def test_non_contiguous_weights_and_gradients_are_fine() -> None:
    original = weight(256, 24).T.requires_grad_()
    assert same(quantize(original), quantize(original.detach().contiguous()))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_survives_copying_pickling_and_state_dicts(symmetric: bool, dtype: torch.dtype) -> None:
    packed = quantize(weight(dtype=dtype), symmetric=symmetric)
    file = io.BytesIO()
    torch.save(packed.state_dict(), file)
    file.seek(0)
    loaded = PackedWeight.from_state_dict(torch.load(file, weights_only=True))
    for other in (loaded, copy.deepcopy(packed), copy.copy(packed), pickle.loads(pickle.dumps(packed))):
        assert same(packed, other)


def test_to_converts_scales_and_keeps_words() -> None:
    packed = quantize(weight()).to(dtype=torch.bfloat16)
    assert packed.dtype == torch.bfloat16
    assert packed.zeros is not None
    assert packed.zeros.dtype == torch.bfloat16
    assert packed.qweight.dtype == torch.int32
    assert packed.to("meta").device.type == "meta"
    assert packed.to("cpu").qweight is packed.qweight


def test_nbytes_and_repr_tell_size_and_kind() -> None:
    packed = quantize(weight(24, 256, torch.float16))
    assert packed.nbytes == 24 * 256 // 2 + 2 * (2 * 24 * 2)
    assert repr(packed) == "PackedWeight(24x256, bits=4, group_size=128, asymmetric, float16, cpu, 3264 bytes)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.ones(4, 100)}, "K=100 is no multiple of 8"),
        ({"weight": torch.ones(4, 136)}, "K=136 is no multiple of group_size=128"),
        ({"weight": torch.ones(4, 128), "group_size": 48}, "group_size=48"),
        ({"weight": torch.ones(4, 128), "group_size": 0}, "group_size=0"),
        ({"weight": torch.ones(4, 128), "bits": 8}, "bits=8, only 4"),
        ({"weight": torch.ones(128)}, r"shape \(128,\), expected \[N, K\]"),
        ({"weight": torch.ones(0, 128)}, r"shape \(0, 128\), expected \[N, K\]"),
        ({"weight": torch.ones(4, 128, dtype=torch.float64)}, "weight is float64"),
        ({"weight": torch.full((4, 128), torch.inf)}, "NaN or infinity"),
        ({"weight": [[1.0] * 128]}, "weight is a list, expected a Tensor"),
        ({"weight": torch.ones(4, 128).to_sparse()}, "weight is torch.sparse_coo, expected torch.strided"),
        ({"weight": torch.ones(4, 128, device="meta")}, "weight is on meta"),
        ({"weight": torch.ones(4, 128), "group_size": 64.0}, "group_size must be an integer, got 64.0"),
        ({"weight": torch.ones(4, 128), "bits": "4"}, "bits must be an integer, got '4'"),
        ({"weight": torch.ones(4, 128), "symmetric": "no"}, "symmetric must be True or False, got 'no'"),
    ],
)
def test_what_cannot_be_quantized_says_why(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        quantize(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qweight": torch.zeros(32, 23, dtype=torch.int32)}, r"qweight is int32 of shape \(32, 23\)"),
        ({"qweight": torch.zeros(32, 24, dtype=torch.int64)}, "qweight is int64"),
        ({"scales": torch.ones(3, 24)}, r"scales is float32 of shape \(3, 24\)"),
        ({"zeros": torch.ones(2, 24, dtype=torch.float16)}, "zeros is float16"),
        ({"scales": torch.ones(2, 24, device="meta"), "zeros": None}, "several devices"),
        ({"layout": "awq"}, "layout 'awq', only 'gptq'"),
        ({"version": 2}, "version 2, this is version 1"),
        ({"version": True}, "version must be an integer, got True"),
        ({"extra": 1}, "unknown entries extra"),
        ({"shape": (24, 512)}, "qweight is int32 of shape"),
        ({"shape": None}, "shape None"),
        ({"shape": (24,)}, r"shape \(24,\)"),
        ({"shape": (24.0, 256.0)}, r"shape \(24.0, 256.0\)"),
        ({"qweight": None}, "qweight is a NoneType, expected a Tensor"),
        ({"zeros": 8}, "zeros is a int, expected a Tensor"),
        ({"group_size": "128"}, "group_size must be an integer, got '128'"),
    ],
)
def test_a_state_that_makes_no_weight_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        PackedWeight.from_state_dict({**quantize(weight()).state_dict(), **change})


def test_a_state_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="its state is a NoneType"):
        PackedWeight.from_state_dict(None)  # type: ignore[arg-type]


def test_a_state_that_lacks_something_says_what() -> None:
    state = quantize(weight()).state_dict()
    del state["scales"]
    with pytest.raises(InvalidArgumentError, match="lacks scales"):
        PackedWeight.from_state_dict(state)


@pytest.mark.parametrize("symmetric", [False, True])
def test_it_is_a_tree_of_its_tensors(symmetric: bool) -> None:
    packed = quantize(weight(), symmetric=symmetric)
    leaves, spec = pytree.tree_flatten(packed)
    assert len(leaves) == (2 if symmetric else 3)
    assert same(pytree.tree_unflatten(leaves, spec), packed)
    assert same(pytree.tree_unflatten(leaves, pytree.treespec_loads(pytree.treespec_dumps(spec))), packed)
    named, _ = pytree.tree_flatten_with_path(packed)
    assert [pytree.keystr(path) for path, _ in named] == [".qweight", ".scales", ".zeros"][: len(leaves)]
    kinds = pytree.tree_map(lambda leaf: leaf.dtype, packed)
    assert kinds.qweight == torch.int32


@pytest.mark.parametrize("symmetric", [False, True])
def test_it_may_be_saved_whole_and_read_back_without_trusting_the_file(symmetric: bool) -> None:
    packed = quantize(weight(), symmetric=symmetric)
    file = io.BytesIO()
    torch.save({"layer": packed}, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=True)["layer"], packed)

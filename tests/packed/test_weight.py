"""Packed weights: the layout, the rounding, the errors, and what survives a round trip."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from registry.errors import InvalidArgumentError
from registry.packed import BITS, PackedWeight, pack, quantize, unpack


def weight(n: int = 24, k: int = 256, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: PackedWeight, other: PackedWeight) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(
        torch.equal(value, others[name]) if isinstance(value, torch.Tensor) else value == others[name]
        for name, value in mine.items()
    )


def kinds() -> dict[str, PackedWeight]:
    """One weight of each kind that keeps other parts."""
    base = quantize(weight(dtype=torch.float16))
    assert base.zeros is not None
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1)).to(torch.int32) // 128
    return {
        "asymmetric": base,
        "symmetric": quantize(weight(dtype=torch.bfloat16), symmetric=True),
        "float zeros": replace(base, zeros=base.zeros.float() + 0.25),
        "act-order": replace(base, g_idx=order),
        "act-order, symmetric": replace(base, zeros=None, g_idx=order),
        "nf4": quantize(weight(), group_size=64, codebook="nf4"),
        "8 bits, a short last group": quantize(weight(24, 250), bits=8),
    }


EVERY_KIND = pytest.mark.parametrize("packed", kinds().values(), ids=kinds())


@settings(max_examples=25, deadline=None)
@given(bits=st.sampled_from(BITS), k=st.integers(1, 70), n=st.integers(1, 9), seed=st.integers(0, 1000))
def test_unpack_undoes_pack_and_bits_after_k_are_0(bits: int, k: int, n: int, seed: int) -> None:
    q = torch.randint(0, 2**bits, (k, n), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    packed = pack(q, bits)
    assert torch.equal(unpack(packed, bits, k), q)
    assert not unpack(packed, bits)[k:].any()


def test_element_k_of_4_bits_stands_at_bit_4_times_k_mod_8_of_word_k_div_8() -> None:
    for k in (0, 3, 7, 8, 15):
        q = torch.zeros(16, 2, dtype=torch.int32)
        q[k, 1] = 13
        words = pack(q).to(torch.int64) & 0xFFFFFFFF
        assert words[k // 8, 1].item() == 13 << (4 * (k % 8))
        assert words.sum().item() == words[k // 8, 1].item()


@pytest.mark.parametrize("symmetric", [False, True])
def test_quantizing_a_dequantized_weight_changes_nothing_much(symmetric: bool) -> None:
    once = quantize(weight(), symmetric=symmetric).dequantize()
    twice = quantize(once, symmetric=symmetric).dequantize()
    torch.testing.assert_close(twice, once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("largest", "dtype", "how"),
    [
        (6e4, torch.float16, {"bits": 1}),
        (6e4, torch.float16, {"bits": 1, "symmetric": True}),
        (3e38, torch.float32, {}),
    ],
)
def test_scales_beyond_the_dtype_are_refused(largest: float, dtype: torch.dtype, how: dict[str, Any]) -> None:
    weight = torch.full((4, 64), largest, dtype=dtype)
    weight[:, ::2] *= -1
    with pytest.raises(InvalidArgumentError, match="the scale of a group exceeds the largest float"):
        quantize(weight, group_size=32, **how)


@pytest.mark.parametrize("symmetric", [False, True])
def test_groups_of_zeros_stay_zero(symmetric: bool) -> None:
    original = weight(4, 256, torch.float16)
    original[:, :128] = 0
    assert not quantize(original, symmetric=symmetric).dequantize()[:, :128].any()


def test_a_weight_larger_than_a_chunk_is_quantized_as_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize(weight(37, 256))
    expected = whole.dequantize()
    monkeypatch.setattr("registry.packed.layout.CHUNK", 1000)
    pieces = quantize(weight(37, 256))
    assert same(whole, pieces)
    assert torch.equal(pieces.dequantize(), expected)


def test_non_contiguous_weights_and_gradients_are_fine() -> None:
    original = weight(256, 24).T.requires_grad_()
    assert same(quantize(original), quantize(original.detach().contiguous()))


@EVERY_KIND
def test_it_survives_copying_pickling_and_state_dicts(packed: PackedWeight) -> None:
    file = io.BytesIO()
    torch.save(packed.state_dict(), file)
    file.seek(0)
    loaded = PackedWeight.from_state_dict(torch.load(file, weights_only=True))
    for other in (loaded, copy.deepcopy(packed), copy.copy(packed), pickle.loads(pickle.dumps(packed))):
        assert same(packed, other)


def test_states_and_pickles_from_before_g_idx_and_codebooks_load() -> None:
    packed = quantize(weight())
    state = packed.state_dict()
    assert state.keys() == {"qweight", "scales", "zeros", "bits", "group_size", "shape", "layout", "version"}
    assert same(PackedWeight.from_state_dict(state), packed)
    old = object.__new__(PackedWeight)
    vars(old).update(state)
    assert same(pickle.loads(pickle.dumps(old)), packed)


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
        ({"weight": torch.ones(4, 128), "group_size": 48}, "group_size=48"),
        ({"weight": torch.ones(4, 128), "group_size": 0}, "group_size=0"),
        ({"weight": torch.ones(4, 128), "bits": 3}, r"bits=3\n  expected one of 1, 2, 4, 8"),
        ({"weight": torch.ones(4, 128), "codebook": "nf3"}, r"codebook='nf3'\n  expected None or nf4"),
        ({"weight": torch.ones(4, 128), "bits": 8, "codebook": "nf4"}, "the codebook nf4 has levels for 4 bits"),
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
        ({"layout": "awq"}, "layout 'awq', only 'gptq', 'gptq_act_order', 'nf4' are"),
        ({"layout": "gptq_act_order"}, "no g_idx beside layout 'gptq_act_order'"),
        ({"layout": "nf4"}, "zeros beside the codebook nf4"),
        ({"layout": "nf4", "zeros": None}, "layout 'nf4' beside codebook None"),
        ({"codebook": "nf4"}, "zeros beside the codebook nf4"),
        ({"codebook": 4}, "codebook=4"),
        ({"codebook": "nf4", "zeros": None, "g_idx": torch.zeros(256, dtype=torch.int32)}, "a g_idx beside layout"),
        ({"g_idx": torch.zeros(256)}, "g_idx is float32 of shape"),
        ({"g_idx": torch.zeros(255, dtype=torch.int32)}, r"g_idx is int32 of shape \(255,\)"),
        ({"g_idx": torch.zeros(256, dtype=torch.int32)}, "g_idx has 256 elements in group 0"),
        ({"g_idx": torch.arange(256, dtype=torch.int32) // 100}, r"groups 0 to 2\n  expected 0 to 1"),
        ({"g_idx": torch.arange(256, dtype=torch.int32) // 128 - 1}, "groups -1 to 0"),
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


@EVERY_KIND
def test_it_is_a_tree_of_its_tensors(packed: PackedWeight) -> None:
    leaves, spec = pytree.tree_flatten(packed)
    assert len(leaves) == 2 + (packed.zeros is not None) + (packed.g_idx is not None)
    assert same(pytree.tree_unflatten(leaves, spec), packed)
    assert same(pytree.tree_unflatten(leaves, pytree.treespec_loads(pytree.treespec_dumps(spec))), packed)
    named, _ = pytree.tree_flatten_with_path(packed)
    for path, leaf in named:
        assert getattr(packed, pytree.keystr(path).removeprefix(".")) is leaf
    assert pytree.tree_map(lambda leaf: leaf.dtype, packed).qweight == torch.int32


@EVERY_KIND
def test_it_may_be_saved_whole_and_read_back_without_trusting_the_file(packed: PackedWeight) -> None:
    file = io.BytesIO()
    torch.save({"layer": packed}, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=True)["layer"], packed)


def test_layout_names_the_way_to_read_the_words() -> None:
    layouts = {name: packed.layout for name, packed in kinds().items()}
    assert {layouts.pop("nf4")} == {"nf4"}
    assert {layouts.pop("act-order"), layouts.pop("act-order, symmetric")} == {"gptq_act_order"}
    assert set(layouts.values()) == {"gptq"}


def test_float_zero_points_stay_float32_and_integer_ones_are_converted() -> None:
    every = kinds()
    for dtype in (torch.bfloat16, torch.float32):
        changed = every["float zeros"].to(dtype=dtype)
        assert changed.zeros is not None
        assert (changed.dtype, changed.zeros.dtype) == (dtype, torch.float32)
    wide = every["float zeros"].to(dtype=torch.float32).to(dtype=torch.float16)
    assert same(wide, every["float zeros"])
    assert same(every["asymmetric"].to(dtype=torch.float32).to(dtype=torch.float16), every["asymmetric"])


def test_only_the_last_group_of_an_order_may_be_shorter() -> None:
    made = quantize(torch.randn(8, 200), group_size=64)
    order = torch.arange(200, dtype=torch.int32) // 64
    assert replace(made, g_idx=order.flip(0)).g_idx is not None
    with pytest.raises(InvalidArgumentError, match="g_idx has 8 elements in group 0\n  only the last group"):
        replace(made, g_idx=(3 - order).clone())


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (torch.float16, 0.92), (torch.float16, 0.97), (torch.float16, 1.0),
        # the range of a group must be a number of float32
        (torch.bfloat16, 0.49), (torch.float32, 0.49),
    ],
)  # fmt: skip
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_levels_are_finite_beside_the_largest_numbers(
    bits: int, symmetric: bool, dtype: torch.dtype, share: float
) -> None:
    largest = torch.finfo(dtype).max * share
    signs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    signs[:64] = signs[:64].abs()
    weight = (signs.double() * largest).clamp(-largest, largest).to(dtype)
    packed = quantize(weight, bits=bits, group_size=32, symmetric=symmetric)
    found = packed.dequantize()
    assert found.isfinite().all()
    # an element of a level that is too large is at most a step from the next one
    step = packed.scales.T.double().repeat_interleave(32, 1)
    assert ((found.double() - weight.double()).abs() <= step * (1 + 2**-7)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_numbers_keep_their_level_in_symmetric_weights(bits: int) -> None:
    weight = torch.full((1, 32), torch.finfo(torch.float16).max, dtype=torch.float16)
    found = quantize(weight, bits=bits, group_size=32, symmetric=True).dequantize()
    assert (found.double() / weight.double() - 1).abs().max() < 2**-8

"""Tensors of another format, shape or dtype are refused with what was expected, and where to take them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from registry.errors import InvalidArgumentError
from registry.packed import PackedWeight

N, K, SIZE = 16, 256, 64


def int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


def int8(n: int, k: int, value: int) -> torch.Tensor:
    return torch.full((n, k), value, dtype=torch.int8)


def gptq(**change: Any) -> PackedWeight:
    given: dict[str, Any] = {
        "qweight": int32(K // 8, N),
        "qzeros": int32(K // SIZE, N // 8),
        "scales": half(K // SIZE, N),
        "g_idx": torch.arange(K, dtype=torch.int32) // SIZE,
        "group_size": SIZE,
    }
    return PackedWeight.from_gptq(**{**given, **change})


def awq(**change: Any) -> PackedWeight:
    given: dict[str, Any] = {
        "qweight": int32(K, N // 8),
        "qzeros": int32(K // SIZE, N // 8),
        "scales": half(K // SIZE, N),
        "group_size": SIZE,
    }
    return PackedWeight.from_awq(**{**given, **change})


def compressed(bits: int = 4, group_size: int | None = SIZE, **change: Any) -> PackedWeight:
    given: dict[str, Any] = {
        "weight_packed": int32(N, K // 8),
        "weight_shape": torch.tensor([N, K]),
        "weight_scale": half(N, K // SIZE),
    }
    state = {name: value for name, value in {**given, **change}.items() if value is not None}
    return PackedWeight.from_compressed_tensors(state, bits=bits, group_size=group_size)


def hqq(packed: torch.Tensor | None = None, **change: Any) -> PackedWeight:
    count = N * K // SIZE
    meta: dict[str, Any] = {
        "shape": torch.Size((N, K)),
        "group_size": SIZE,
        "axis": 1,
        "packing": "4bit_u8",
        "nbits": 4,
        "scale": half(count, 1),
        "zero": half(count, 1),
    }
    words = torch.zeros(count // 2, SIZE, dtype=torch.uint8) if packed is None else packed
    meta = {name: value for name, value in {**meta, **change}.items() if value is not None}
    return PackedWeight.from_hqq(words, meta)


def torchao(kind: str, **attributes: Any) -> PackedWeight:
    tensor = type(kind, (), {"dim": lambda self: len(self.shape)})()
    vars(tensor).update({"shape": torch.Size((N, K)), "act_pre_scale": None, **attributes})
    return PackedWeight.from_torchao(tensor)


def nf4(packed: torch.Tensor, **change: Any) -> PackedWeight:
    state = {"absmax": torch.ones(N * K // SIZE), "blocksize": SIZE, "shape": torch.Size((N, K)), "quant_type": "nf4"}
    return PackedWeight.from_bitsandbytes(packed, SimpleNamespace(**{**state, "state2": None, **change}))


def test_what_the_cases_below_change_is_accepted() -> None:
    for made in (gptq(), awq(), compressed(), hqq(), nf4(torch.zeros(N * K // 2, 1, dtype=torch.uint8))):
        assert made.shape == (N, K)
        assert made.g_idx is None
    assert compressed(group_size=None).group_size == SIZE
    swapped = torch.arange(K, dtype=torch.int32).flip(0) // SIZE
    assert gptq(g_idx=swapped).layout == compressed(weight_g_idx=swapped).layout == "gptq_act_order"
    assert compressed(weight_g_idx=torch.full((K,), -1)).g_idx is None


OTHER_ORDER = torch.arange(K, dtype=torch.int32) % 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qweight": int32(K, N // 8)}, r"(?s)qweight is int32 of shape \(256, 2\).*an AWQ checkpoint: use Packed"),
        ({"qweight": int32(K // 8, N).long()}, "qweight is int64"),
        ({"qweight": int32(N)}, r"qweight has shape \(16,\)"),
        ({"bits": 8}, r"(?s)qweight is int32 of shape \(32, 16\).*expected int32 of shape \(64, 16\)"),
        ({"bits": 3}, "bits=3, expected 2 or 4 or 8\n  GPTQ's words of 3 bits"),
        ({"bits": "4"}, "bits must be an integer"),
        ({"group_size": 128}, r"(?s)scales is float16 of shape \(4, 16\).*for K=256 and group_size=128"),
        ({"group_size": 0}, "group_size=0, expected a positive integer or -1"),
        ({"scales": half(4, N).int()}, "scales is int32"),
        ({"qzeros": half(4, N)}, r"qzeros is float16 of shape \(4, 16\)\n  expected int32 of shape \(4, 2\)"),
        ({"g_idx": OTHER_ORDER[:-16]}, r"(?s)qweight is int32.*expected int32 of shape \(30, 16\)"),
        ({"g_idx": OTHER_ORDER}, "g_idx has 86 elements in group 0"),
        ({"g_idx": torch.arange(K, dtype=torch.int32) // 32}, "g_idx has groups 0 to 7\n  expected 0 to 3"),
        ({"g_idx": -torch.arange(K, dtype=torch.int32) // SIZE}, "g_idx has groups -4 to 0"),
        ({"g_idx": torch.arange(K) / SIZE}, "g_idx is float32"),
        (
            {"group_size": 24, "qzeros": int32(11, N // 8), "scales": half(11, N), "g_idx": None},
            "groups of 24 columns, expected a multiple of 16\n  quantise with group_size=16 or a multiple",
        ),
        ({"checkpoint_format": "marlin"}, "checkpoint_format='marlin'\n  expected gptq or gptq_v2"),
        ({"qweight": int32(K // 8, N).to("meta")}, "qweight is on meta"),
        ({"scales": [1.0]}, "scales is a list, expected a Tensor"),
    ],
)
def test_gptq_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        gptq(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qweight": int32(K // 8, N)}, "(?s)qweight is int32.*a GPTQ checkpoint: use PackedWeight.from_gptq"),
        ({"qweight": int32(N, K // 8), "group_size": N}, r"qweight is int32 of shape \(16, 32\)"),
        ({"bits": 8}, "bits=8, expected 4"),
        ({"version": "gemv_fast"}, r"(?s)version='gemv_fast'.*expected gemm or gemv, as"),
        ({"version": "gemv"}, r"scales is float16 of shape \(4, 16\)"),
        ({"qweight": int32(N, K // 8), "scales": half(N, 8)}, r'(?s)qweight is int32.*packed along K: version="gemv"'),
        ({"group_size": 128}, "(?s)scales is float16.*for K=256 and group_size=128"),
        ({"qzeros": half(4, N)}, "qzeros is float16"),
        ({"scales": half(4)}, r"scales \(4,\)"),
    ],
)
def test_awq_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        awq(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_packed": None}, "neither weight_packed nor weight is given"),
        ({"weight_scale": None}, "weight_scale is not given"),
        ({"weight_shape": None}, "weight_shape is not given"),
        ({"bits": 8}, "(?s)weight_packed is int32.*other bits than the checkpoint's num_bits"),
        ({"bits": 3}, "bits=3, expected 1 or 2 or 4 or 8"),
        ({"group_size": 32}, "(?s)weight_scale is float16.*for K=256 and group_size=32"),
        ({"weight_scale": half(N, 3), "group_size": None}, "weight_scale is float16"),
        ({"weight_zero_point": half(N, 4)}, "weight_zero_point is float16"),
        ({"weight_zero_point": int32(N, 4)}, r"weight_zero_point is int32 of shape \(16, 4\)"),
        ({"weight_g_idx": OTHER_ORDER}, "g_idx has 86 elements in group 0"),
        ({"weight_packed": None, "weight": half(N, K)}, "(?s)weight is float16.*int-quantized"),
        ({"weight_packed": torch.zeros(N, K // 2, dtype=torch.uint8)}, "(?s)weight_packed is uint8, as floats of 4"),
        (
            {"weight_packed": None, "weight": int8(N, K, 8)},
            "numbers from 8 to 8, beyond bits=4\n  pass the scheme's num",
        ),
        ({"weight_packed": None, "weight": int8(N, K, -9)}, "numbers from -9 to -9, beyond bits=4"),
    ],
)
def test_compressed_tensors_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        compressed(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": 0}, "(?s)axis=0, so groups run along N.*quantise with HQQ's axis=1"),
        ({"group_size": 96}, "group_size=96 does not divide K=256"),
        ({"packing": "4bit_32"}, "packing '4bit_32'"),
        ({"packing": "2bit_u8"}, "W_q is uint8 of shape"),
        ({"shape": None}, "meta lacks one of"),
        ({"shape": K}, "shape 256, expected"),
        ({"shape": (1, N, K)}, r"shape \(1, 16, 256\), expected"),
        ({"group_size": "64"}, "group_size must be an integer, got '64'"),
        ({"scale": None}, "meta has no scale"),
        ({"zero": half(3, 1)}, r"zero is float16 of shape \(3, 1\)"),
        ({"packed": torch.zeros(32, SIZE)}, "W_q is float32"),
    ],
)
def test_hqq_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        hqq(**change)


def test_torchao_and_bitsandbytes_refuse() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Int4PreshuffledTensor is not supported\n  expected Int4Tensor"):
        torchao("Int4PreshuffledTensor")
    with pytest.raises(InvalidArgumentError, match="Tensor is not supported"):
        PackedWeight.from_torchao(torch.ones(4, 4))
    with pytest.raises(InvalidArgumentError, match="act_pre_scale scales the activations"):
        torchao("Int8Tensor", act_pre_scale=torch.ones(K))
    with pytest.raises(InvalidArgumentError, match="expected \\[N, K\\]"):
        torchao("Int8Tensor", shape=torch.Size((2, N, K)))
    with pytest.raises(InvalidArgumentError, match="qdata is int8 of shape"):
        torchao("Int4Tensor", qdata=torch.zeros(N, K, dtype=torch.int8))
    qdata = torch.zeros(N, K, dtype=torch.int8)
    with pytest.raises(InvalidArgumentError, match=r"block_size \(4, 64\)"):
        torchao("Int8Tensor", qdata=qdata, block_size=[4, SIZE], scale=torch.ones(4, 4), zero_point=None)
    words = torch.zeros(N * K // 2, 1, dtype=torch.uint8)
    with pytest.raises(InvalidArgumentError, match="quant_type='fp4'"):
        nf4(words, quant_type="fp4")
    with pytest.raises(InvalidArgumentError, match="blocks of 96 in a weight of shape"):
        nf4(words, blocksize=96)
    with pytest.raises(InvalidArgumentError, match="packed is uint8 of shape"):
        nf4(words[:-1])
    with pytest.raises(InvalidArgumentError, match=r"(?s)in the order for the CPU.*of which 32 divides N"):
        nf4(words, packing_format_for_cpu=True)


@pytest.mark.parametrize("quant_state", [None, {"absmax": torch.ones(1)}, SimpleNamespace(absmax=torch.ones(1))])
def test_bitsandbytes_refuses_a_weight_that_it_has_not_quantised(quant_state: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"(?s)quant_state is a \w+ without one of.*Params4bit.quant_state"):
        PackedWeight.from_bitsandbytes(torch.zeros(N * K // 2, 1, dtype=torch.uint8), quant_state)

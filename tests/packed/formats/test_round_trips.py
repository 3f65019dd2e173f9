"""What libraries packed, converted and packed again by their published layouts: the libraries' own bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry.packed import CODEBOOKS, PackedWeight, pack, symmetric_zero, unpack

from .test_libraries import (
    AWQ,
    BNB,
    COMPRESSED,
    FOR_THE_CPU,
    GPTQ,
    HQQ,
    TORCHAO,
    hqq_of,
    of_awq,
    state_of_bitsandbytes,
    torchao_tensor,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def integers(weight: PackedWeight) -> torch.Tensor:
    """``[K, N]``, from 0."""
    return unpack(weight.qweight, weight.bits, weight.shape[1])


def zero_points(weight: PackedWeight) -> torch.Tensor:
    """``[groups, N]`` as integers, also where all are the symmetric one."""
    found = weight.zeros
    if found is None:
        found = torch.full_like(weight.scales, symmetric_zero(weight.bits), dtype=torch.float32)
    assert torch.equal(found, found.round())
    return found.int()


@pytest.mark.parametrize("name", GPTQ)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_gptq(name: str, version: str) -> None:
    case = GPTQ[name]
    bits, form = case["bits"], "gptq" if version == "v1" else "gptq_v2"
    weight = PackedWeight.from_gptq(
        case["qweight"], case[f"qzeros_{version}"], case["scales"], case["g_idx"],
        bits=bits, group_size=case["group_size"], checkpoint_format=form,
    )  # fmt: skip
    assert torch.equal(pack(integers(weight), bits), case["qweight"])
    # a group of 512 is two, which repeat the scale and zero point
    again = max(1, case["group_size"] // 256)
    words = pack(zero_points(weight)[::again].T, bits).T
    if version == "v1":
        # the library subtracts 1 from each field of a word in one subtraction, which borrows from field to field
        words -= sum(1 << bits * place for place in range(32 // bits))
    assert torch.equal(words, case[f"qzeros_{version}"])
    assert torch.equal(weight.scales[::again], case["scales"])
    if weight.g_idx is not None:
        assert torch.equal(weight.g_idx // again, case["g_idx"].int())


@pytest.mark.parametrize("name", [name for name in AWQ if name.startswith("gemv")])
def test_awq_of_version_gemv(name: str) -> None:
    case, weight = AWQ[name], of_awq(name)
    assert torch.equal(pack(integers(weight)).T, case["qweight"])
    zeros = zero_points(weight)
    # words of zero points, and scales, are filled up with 0
    filled = torch.nn.functional.pad(zeros, (0, 0, 0, 8 * case["qzeros"].shape[1] - len(zeros)))
    assert torch.equal(pack(filled).T, case["qzeros"])
    assert torch.equal(weight.scales.T, case["scales"][:, : len(zeros)])


@pytest.mark.parametrize("name", [name for name in AWQ if not name.startswith("gemv")])
def test_awq(name: str) -> None:
    case, weight = AWQ[name], of_awq(name)
    for numbers, stored in ((integers(weight), case["qweight"]), (zero_points(weight), case["qzeros"])):
        in_order = numbers.unflatten(1, (-1, 8))[..., list(AWQ_ORDER)].flatten(1)
        assert torch.equal(pack(in_order.T).T, stored)
    assert torch.equal(weight.scales, case["scales"])


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors(name: str) -> None:
    case = dict(COMPRESSED[name])
    bits, size = case["bits"], case["group_size"]
    weight = PackedWeight.from_compressed_tensors(case, bits=bits, group_size=size)
    q, zeros, middle = integers(weight), zero_points(weight), 2 ** (bits - 1)
    if "weight_packed" in case:
        assert torch.equal(pack(q, bits).T, case["weight_packed"])
    else:
        assert torch.equal((q - middle).T.to(torch.int8), case["weight"])
    if "weight_zero_point" in case:
        stored = case["weight_zero_point"]
        again = pack(zeros.T, bits) if stored.dtype == torch.int32 else (zeros - middle).T.to(torch.int8)
        assert torch.equal(again, stored)
    assert torch.equal(weight.scales.T, case["weight_scale"])


@pytest.mark.parametrize(("bits", "n"), [(1, 32), (2, 16), (4, 1), (4, 8), (8, 4)])
def test_compressed_tensors_of_so_few_channels_that_one_word_has_all_zero_points(bits: int, n: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    q = torch.randint(2**bits, (64, n), generator=generator)
    zeros = torch.randint(2**bits, (1, n), generator=generator)
    zeros[0, 0] = 0
    state = {
        "weight_packed": pack(q, bits).T.contiguous(),
        "weight_shape": torch.tensor((n, 64)),
        "weight_scale": torch.full((n, 1), 0.5, dtype=torch.float16),
        "weight_zero_point": pack(zeros.T, bits),
    }
    assert state["weight_zero_point"].numel() == 1
    weight = PackedWeight.from_compressed_tensors(state, bits=bits)
    assert torch.equal(weight.dequantize(), ((q - zeros) * 0.5).T.half())


@pytest.mark.parametrize("zero_point", [torch.tensor([-3], dtype=torch.int8), torch.tensor(-3, dtype=torch.int32)])
def test_compressed_tensors_with_one_zero_point_for_the_tensor(zero_point: torch.Tensor) -> None:
    q = torch.arange(16).repeat(8, 4).T.contiguous()
    state = {
        "weight_packed": pack(q).T.contiguous(),
        "weight_shape": torch.tensor((8, 64)),
        "weight_scale": torch.tensor([0.5], dtype=torch.float16),
        "weight_zero_point": zero_point,
    }
    weight = PackedWeight.from_compressed_tensors(state)
    assert torch.equal(weight.dequantize(), ((q - 8 + 3) * 0.5).T.half())


@pytest.mark.parametrize("name", [name for name in TORCHAO if name.startswith("int")])
def test_torchao(name: str) -> None:
    case = TORCHAO[name]
    weight = PackedWeight.from_torchao(torchao_tensor(case))
    around = integers(weight).T - 2 ** (weight.bits - 1)
    if name == "int4":
        nibbles = (around & 15).unflatten(1, (-1, 2))
        assert torch.equal((nibbles[..., 0] | nibbles[..., 1] << 4).to(torch.uint8), case["qdata"].view(torch.uint8))
    else:
        assert torch.equal(around.to(torch.int8), case["qdata"])


@pytest.mark.parametrize("name", [name for name in HQQ if "axis 1" in name])
def test_hqq(name: str) -> None:
    packed, meta = hqq_of(HQQ[name])
    weight = PackedWeight.from_hqq(packed, meta)
    bits, per_word = {"8bit_u8": (8, 1), "4bit_u8": (4, 2), "3bit_32": (3, 10), "2bit_u8": (2, 4), "1bit_u8": (1, 8)}[
        meta["packing"]
    ]
    rows = integers(weight).T.reshape(-1, meta["group_size"])
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % per_word))
    # each of several equal parts of the rows has a place in the words, the first the highest
    places = [part.long() << bits * (per_word - 1 - place) for place, part in enumerate(rows.chunk(per_word))]
    again: Any = sum(places)
    stored = packed.view(torch.uint8) if meta.get("view_as_float") else packed
    assert torch.equal(again.to(stored.dtype), stored)


@pytest.mark.parametrize("name", [name for name in BNB if name not in FOR_THE_CPU])
def test_bitsandbytes(name: str) -> None:
    packed = BNB[name]["packed"]
    weight = PackedWeight.from_bitsandbytes(packed, state_of_bitsandbytes(name))
    q = integers(weight).T.reshape(-1, 2)
    assert torch.equal((q[:, 0] << 4 | q[:, 1]).to(torch.uint8), packed.view(-1))
    assert len(CODEBOOKS["nf4"]) == 16


@pytest.mark.parametrize("name", FOR_THE_CPU)
def test_bitsandbytes_in_the_order_for_the_cpu(name: str) -> None:
    packed = BNB[name]["packed"]
    weight = PackedWeight.from_bitsandbytes(packed, state_of_bitsandbytes(name))
    # of 32 rows and two columns the first 32 elements are in lower halves
    halves = integers(weight).T.view(-1, 32, 64, 2).transpose(1, 2).reshape(-1, 2, 32)
    assert torch.equal((halves[:, 0] | halves[:, 1] << 4).to(torch.uint8), packed.view(-1, 32))
    assert torch.equal(weight.scales, BNB[name]["absmax"].float())


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [name for name in BNB if name not in FOR_THE_CPU])
def test_bitsandbytes_bytes_stored_in_another_dtype(name: str, storage: torch.dtype) -> None:
    packed, state = BNB[name]["packed"], state_of_bitsandbytes(name)
    stored = packed.reshape(-1).view(storage).reshape(-1, 1)
    given, weight = PackedWeight.from_bitsandbytes(packed, state), PackedWeight.from_bitsandbytes(stored, state)
    assert torch.equal(weight.qweight, given.qweight)
    assert torch.equal(weight.scales, given.scales)

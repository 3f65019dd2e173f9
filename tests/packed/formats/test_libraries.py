"""Tensors that other libraries packed, against what those libraries dequantise (fixtures, by make_fixtures.py)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from registry.errors import InvalidArgumentError
from registry.packed import PackedWeight, dequantized, unpack

Case = dict[str, Any]


def cases(library: str) -> dict[str, Case]:
    """Tensors, numbers and texts by name, for each case of a library's file."""
    found: dict[str, Case] = {}
    with np.load(Path(__file__).parent / "fixtures" / f"{library}.npz") as file:
        for key in file.files:
            if key == "made by":
                continue
            case, name = key.rsplit("/", 1)
            value: Any = file[key]
            if value.dtype.kind == "U":
                value = json.loads(str(value))
            elif name in ("bits", "group_size", "blocksize", "inner.blocksize"):
                value = int(value)
            else:
                value = torch.from_numpy(value)
                value = value.view(torch.bfloat16) if name.endswith(":bfloat16") else value
            found.setdefault(case, {})[name.removesuffix(":bfloat16")] = value
    return found


GPTQ, AWQ, COMPRESSED, TORCHAO, HQQ, BNB = (
    cases(name) for name in ("gptqmodel", "autoawq", "compressed_tensors", "torchao", "hqq", "bitsandbytes")
)

FOR_THE_CPU = [name for name in BNB if name.startswith("for the CPU")]


def exact(weight: PackedWeight) -> torch.Tensor:
    """The weight ``[N, K]`` in float64."""
    how: dict[str, Any] = {
        "bits": weight.bits,
        "k": weight.shape[1],
        "g_idx": weight.g_idx,
        "codebook": weight.codebook,
    }
    return dequantized(weight.qweight, weight.scales, weight.zeros, weight.group_size, torch.float64, **how).T


def check(weight: PackedWeight, expected: torch.Tensor, roundings: float = 0.5) -> None:
    """Equal to what the library computed, which rounded the largest of its terms in its dtype a few times."""
    error = (exact(weight) - expected.double()).abs()
    largest = expected.double().abs().amax()
    assert expected.abs().amax() > 0.01
    assert (error <= roundings * torch.finfo(expected.dtype).eps * (expected.double().abs() + 1e-3 * largest)).all()


@pytest.mark.parametrize("name", GPTQ)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_gptq_is_what_gptqmodel_dequantises(name: str, version: str) -> None:
    case = GPTQ[name]
    weight = PackedWeight.from_gptq(
        case["qweight"],
        case[f"qzeros_{version}"],
        case["scales"],
        case["g_idx"],
        bits=case["bits"],
        group_size=case["group_size"],
        checkpoint_format="gptq" if version == "v1" else "gptq_v2",
    )
    assert torch.equal(weight.dequantize(), case["expected"])
    assert torch.equal(weight.qweight, case["qweight"])
    assert (weight.g_idx is not None) == ("act-order" in name)
    assert (weight.zeros is None) == ("symmetric" in name)
    if weight.zeros is not None:
        assert (weight.zeros == 0).any()
        assert weight.zeros.dtype == torch.float16


def test_gptqs_older_zero_points_read_as_the_newer_ones_would_be_wrong_by_a_quarter() -> None:
    case = GPTQ["4 bits, group 64"]
    wrong = PackedWeight.from_gptq(
        case["qweight"], case["qzeros_v1"], case["scales"], group_size=64, checkpoint_format="gptq_v2"
    )
    error = (exact(wrong) - case["expected"].double()).norm() / case["expected"].double().norm()
    assert error > 0.1


def of_awq(name: str) -> PackedWeight:
    """The weight of a fixture."""
    case, version = AWQ[name], "gemv" if name.startswith("gemv") else "gemm"
    parts = case["qweight"], case["qzeros"], case["scales"]
    return PackedWeight.from_awq(*parts, group_size=case["group_size"], version=version)


@pytest.mark.parametrize("name", AWQ)
def test_awq_is_what_autoawq_dequantises(name: str) -> None:
    case, weight = AWQ[name], of_awq(name)
    assert torch.equal(weight.dequantize(), case["expected"])
    if name.startswith("gemv"):
        assert torch.equal(weight.qweight.T, case["qweight"])
        return
    # packed again in AWQ's order, by its definition
    q, order = unpack(weight.qweight), [0, 2, 4, 6, 1, 3, 5, 7]
    again = sum(q[:, column::8].long() << (4 * place) for place, column in enumerate(order))
    assert torch.equal(torch.as_tensor(again).to(torch.int32), case["qweight"])


@pytest.mark.parametrize("given_size", [True, False])
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_is_what_it_dequantises(name: str, given_size: bool) -> None:
    case = dict(COMPRESSED[name])
    expected, bits, group_size = case.pop("expected"), case.pop("bits"), case.pop("group_size")
    weight = PackedWeight.from_compressed_tensors(case, bits=bits, group_size=group_size if given_size else None)
    assert torch.equal(weight.dequantize(), expected)
    assert (weight.g_idx is not None) == ("act-order" in name)
    assert (weight.zeros is None) == ("symmetric" in name)


def torchao_tensor(case: Case) -> Any:
    plain = case["plain"]
    attributes = {name: value for name, value in case.items() if name not in ("plain", "expected")}
    attributes |= {name: plain[name] for name in ("block_size", "scaler_block_size")}
    attributes |= {name: getattr(torch, (plain[name] or "x.int8").split(".")[1]) for name in ("dtype", "target_dtype")}
    # torchao is not needed: a class of this name with these attributes
    tensor = type(plain["class"], (), {"dim": lambda self: len(self.shape)})()
    vars(tensor).update(attributes, shape=torch.Size(plain["shape"]))
    return tensor


@pytest.mark.parametrize("name", TORCHAO)
def test_torchao_is_what_it_dequantises(name: str) -> None:
    case = TORCHAO[name]
    weight = PackedWeight.from_torchao(torchao_tensor(case))
    if name.startswith("nf4"):
        # torchao's table has four digits, in the weight's dtype
        error = (exact(weight) - case["expected"].double()).abs()
        assert (error <= (1e-4 + 1.5 * torch.finfo(case["expected"].dtype).eps) * exact(weight).abs().amax()).all()
    elif name == "int4":
        # its shift became a zero point in float32
        torch.testing.assert_close(exact(weight), case["expected"].double(), rtol=1e-6, atol=1e-7)
    else:
        check(weight, case["expected"], 2.0)


def test_torchaos_tiles_are_what_lanes_of_a_warp_read() -> None:
    """From the loop of torch's kernel ``matrix_to_m16n8k16_Bint4_layout``; it runs on a GPU only."""
    n, k, group_size = 16, 256, 64
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (n, k), generator=generator)
    qdata = torch.zeros(n // 8, k // 128, 32, 4, dtype=torch.int64)
    for tile_n in range(n // 8):
        for outer in range(k // 128):
            for lane in range(32):
                for inner in range(0, 8, 2):
                    row, first = tile_n * 8 + lane // 4, (outer * 8 + inner) * 16 + lane % 4 * 2
                    at = [first, first + 1, first + 8, first + 9]
                    v = [int(q[row, column]) for column in [*at, *(column + 16 for column in at)]]
                    word = sum(v[i] << (4 * place) for place, i in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
                    qdata[tile_n, outer, lane, inner // 2] = word
    scale_and_zero = torch.rand(k // group_size, n, 2, generator=generator).bfloat16() + 0.5
    tensor = type("Int4TilePackedTo4dTensor", (), {"dim": lambda self: 2})()
    vars(tensor).update(
        qdata=qdata.to(torch.int32),
        scale_and_zero=scale_and_zero,
        block_size=[1, group_size],
        shape=torch.Size((n, k)),
        act_pre_scale=None,
    )
    scale, zero = (scale_and_zero.double()[..., i].T.repeat_interleave(group_size, 1) for i in (0, 1))
    weight = PackedWeight.from_torchao(tensor)
    torch.testing.assert_close(exact(weight), (q - 8) * scale + zero, rtol=1e-6, atol=1e-6)
    assert weight.zeros is not None
    assert (weight.dtype, weight.zeros.dtype) == (torch.bfloat16, torch.float32)


def hqq_of(case: Case) -> tuple[torch.Tensor, dict[str, Any]]:
    flat = {name.removeprefix("meta."): value for name, value in case.items() if name.startswith("meta.")}
    meta: dict[str, Any] = {}
    for name, value in {**case["plain"], **flat}.items():
        *path, last = name.split(".")
        place = meta
        for step in path:
            place = place.setdefault(step, {})
        place[last] = getattr(torch, value.split(".")[1]) if str(value).startswith("torch.") else value
    return case["W_q"], meta


@pytest.mark.parametrize("name", [name for name in HQQ if "axis 1" in name])
def test_hqq_is_what_it_dequantises(name: str) -> None:
    weight = PackedWeight.from_hqq(*hqq_of(HQQ[name]))
    expected = HQQ[name]["expected"]
    # the library subtracts and multiplies in float16: an error of the largest q or zero point
    scale = weight.scales.double().T.repeat_interleave(weight.group_size, 1)
    assert weight.zeros is not None
    zero = weight.zeros.double().T.repeat_interleave(weight.group_size, 1).abs()
    error = (exact(weight) - expected.double()).abs()
    assert (error <= 2**-10 * scale * (2**weight.bits + zero)).all()
    assert weight.zeros.dtype == torch.float32


def state_of_bitsandbytes(name: str) -> SimpleNamespace:
    """The quant_state of a fixture."""
    case = BNB[name]
    inner = {key.removeprefix("inner."): value for key, value in case.items() if key.startswith("inner.")}
    state = SimpleNamespace(
        absmax=case["absmax"],
        blocksize=case["blocksize"],
        shape=torch.Size(case["shape"].tolist()),
        quant_type="nf4",
        offset=inner.get("offset"),
        state2=SimpleNamespace(**inner) if inner else None,
    )
    if name in FOR_THE_CPU:
        # bitsandbytes removes the attribute
        del state.state2
        state.packing_format_for_cpu = True
    return state


@pytest.mark.parametrize("name", BNB)
def test_nf4_is_what_bitsandbytes_dequantises(name: str) -> None:
    case, state = BNB[name], state_of_bitsandbytes(name)
    weight = PackedWeight.from_bitsandbytes(case["packed"], state)
    assert weight.codebook == "nf4"
    check(weight, case["expected"], 2.0)
    state.quant_type = "fp4"
    with pytest.raises(InvalidArgumentError, match="quant_type='fp4'"):
        PackedWeight.from_bitsandbytes(case["packed"], state)


def test_groups_larger_than_a_packed_weights_are_divided() -> None:
    case = AWQ["group -1"]
    rows = 3
    qweight = torch.cat([case["qweight"]] * 2 * rows)
    qzeros, scales = torch.cat([case["qzeros"]] * rows), torch.cat([case["scales"] * factor for factor in (1, 2, 3)])
    weight = PackedWeight.from_awq(qweight, qzeros, scales, group_size=512)
    assert weight.group_size == 256
    whole = torch.cat([case["expected"].double() * factor for factor in (1, 1, 2, 2, 3, 3)], 1)
    torch.testing.assert_close(exact(weight), whole, rtol=1e-3, atol=1e-4)

"""registry_humming without a GPU: the order of the weight, the tiles, and the reasons why it cannot run a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import registry
from registry.artifact import Signature
from registry.device import Device
from registry.dispatch.plans.prepared import PreparedTensors
from registry.packed import PackedWeight, unpack
from registry.problem import Arguments, Problem, Value
from registry_humming import (
    form,
    gemm_int1_implementations,
    gemm_int2_implementations,
    gemm_int4_implementations,
    gemm_int8_implementations,
    kernels,
    order,
    tiles,
)
from registry_humming.form import HummingForm
from registry_humming.gemm import HummingHeuristic, HummingTiles

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20, 227 << 10)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20, 163 << 10)
OFFERED = {
    "gemm_int4": gemm_int4_implementations,
    "gemm_int8": gemm_int8_implementations,
    "gemm_int2": gemm_int2_implementations,
    "gemm_int1": gemm_int1_implementations,
}
BITS = {"gemm_int4": 4, "gemm_int8": 8, "gemm_int2": 2, "gemm_int1": 1}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the library's version, which decides whether it is missing; "0.1.19" at first."""

    def install(version: str) -> None:
        monkeypatch.setattr(form, "installed_version", lambda _: version)
        monkeypatch.setattr(form, "find_spec", lambda _: object() if version else None)
        form.library_version.cache_clear()

    install("0.1.19")
    yield install
    form.library_version.cache_clear()


def problem_of(op: str, m: int, n: int, k: int, group_size: int = 128, **more: Value) -> Problem:
    traits: dict[str, Value] = {name: more.pop(name) for name in ("aligned", "contiguous") if name in more}
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "dtype": "bfloat16"}
    if op == "gemm_int4":
        dims |= {"bits": 4, "symmetric": more.pop("zeros", "integer") == "none"}
    else:
        dims |= {"zeros": "integer", "act_order": False, "bias": False}
    return Problem(op, {**dims, **more}, traits)


def reasons(problem: Problem, device: Device = H200) -> str:
    return "; ".join(HummingHeuristic(problem.op).unsupported(problem, device))


# the order of the prepared tensors


def numbers_of(packed: torch.Tensor, bits: int, n: int) -> torch.Tensor:
    """``[k, n]``: each number from the word and the bits where a lane of the kernel looks for it."""
    k = packed.shape[0] * 16
    found, per_word = torch.zeros((k, n), dtype=torch.int32), 32 // bits
    for row in range(16):
        for column in range(64):
            lane = 4 * (column % 8) + row % 8 // 2
            place = 8 * (column // 16) + 4 * (column // 8 % 2) + 2 * (row // 8) + row % 2
            word, inside = divmod(place, per_word)
            shift = bits * (inside // 2 + inside % 2 * per_word // 2)
            words = packed[:, lane * bits + word :: 32 * bits]
            found[row::16, column::64] = (words >> shift) & (2**bits - 1)
    return found


def weight_and_problem(op: str, n: int, k: int, group_size: int, **more: Any) -> tuple[PackedWeight, Problem]:
    torch.manual_seed(3)
    weight, zeros, dtype = torch.randn(n, k), more.get("zeros", "integer"), more.get("dtype", "bfloat16")
    bits, typed = BITS[op], weight.to(getattr(torch, dtype))
    made = registry.quantize(typed, bits=bits, group_size=group_size, symmetric=zeros == "none" or bits == 1)
    if bits == 1 and zeros == "integer":
        made = PackedWeight(made.qweight, made.scales, torch.ones_like(made.scales), 1, group_size, (n, k))
    return made, problem_of(op, 1, n, k, group_size, **more)


def prepared(weight: PackedWeight, problem: Problem) -> dict[str, torch.Tensor]:
    one = HummingHeuristic(problem.op)
    return {
        name: one.prepare(name, tuple(getattr(weight, source) for source in sources), problem, {})
        for name, sources in one.prepared(problem, {}).items()
    }


@pytest.mark.parametrize("op", OFFERED)
@pytest.mark.parametrize("zeros", ["none", "integer"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("chunk", [1, 2**24])
@pytest.mark.few(4)
def test_each_number_stands_where_its_lane_looks(
    op: str, zeros: str, dtype: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_CHUNK", chunk)
    weight, problem = weight_and_problem(op, 192, 320, 64, zeros=zeros, dtype=dtype)
    found = numbers_of(prepared(weight, problem)["packed"], weight.bits, 192)
    if HummingForm.of(problem).is_signed:
        # a sign and a magnitude, to which a negative number's kernel adds 1
        found = torch.where(found >= 128, 255 - found, found + 128)
    assert torch.equal(found, unpack(weight.qweight, weight.bits, 320))


@pytest.mark.parametrize("op", OFFERED)
@pytest.mark.parametrize("zeros", ["none", "integer"])
def test_scales_and_zero_points_are_those_of_the_weight(op: str, zeros: str) -> None:
    weight, problem = weight_and_problem(op, 128, 256, 64, zeros=zeros)
    made = prepared(weight, problem)
    column = torch.tensor([64 * (place // 64) + 8 * (place % 8) + place // 8 % 8 for place in range(128)])
    assert torch.equal(made["factors"], weight.scales[:, column])
    if zeros == "none" and weight.bits > 1:
        assert "offsets" not in made
    else:
        assert torch.equal(made["offsets"], torch.full_like(weight.scales, 0.5) if zeros == "none" else _zeros(weight))


def _zeros(weight: PackedWeight) -> torch.Tensor:
    assert weight.zeros is not None
    column = [64 * (place // 64) + 8 * (place % 8) + place // 8 % 8 for place in range(weight.shape[0])]
    return weight.zeros[:, column]


def test_scales_of_whole_columns_are_for_the_result_and_in_float16_for_equal_groups() -> None:
    weight, problem = weight_and_problem("gemm_int8", 128, 256, 256, zeros="none")
    column = [32 * (place // 32) + 8 * (place // 2 % 4) + 2 * (place // 8 % 4) + place % 2 for place in range(128)]
    assert torch.equal(prepared(weight, problem)["factors"], weight.scales[:, column])
    weight, problem = weight_and_problem("gemm_int8", 128, 256, 256, zeros="none", dtype="float16")
    assert (HummingForm.of(problem).group, HummingForm.of(problem).repeats) == (128, 2)
    assert prepared(weight, problem)["factors"].shape == (2, 128)


@pytest.mark.parametrize("op", OFFERED)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("group_size", [64, 256])
def test_shapes_are_told_by_meta_tensors(op: str, dtype: str, group_size: int) -> None:
    weight, problem = weight_and_problem(op, 128, 256, group_size, dtype=dtype)
    contract = registry.ops()[op]
    a = torch.zeros((1, 256), dtype=weight.dtype)
    args, attributes = contract.flatten(a, weight) if contract.flatten else ((), {})
    arguments = contract.arguments(args, **attributes)
    specs = PreparedTensors(contract, HummingHeuristic(op), problem, {}).specs(arguments)
    made = prepared(weight, problem)
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {
        name: (tuple(tensor.shape), tensor.dtype) for name, tensor in made.items()
    }


# what it cannot run


def test_a_problem_of_a_model_has_no_reason_against_it() -> None:
    for op in OFFERED:
        for dtype in ("float16", "bfloat16"):
            for zeros in ("none", "integer"):
                for group_size in (32, 64, 128, 4096):
                    problem = problem_of(op, 16, 28672, 4096, group_size, dtype=dtype, zeros=zeros)
                    inexact = (dtype, zeros, group_size) == ("float16", "integer", 4096)
                    assert bool(reasons(problem)) == bool(reasons(problem, A100)) == inexact


@pytest.mark.parametrize(
    ("op", "dims", "told"),
    [
        ("gemm_int8", {"dtype": "float32"}, "dtype is float32"),
        ("gemm_int4", {"aligned": False}, "not aligned to 16 bytes"),
        ("gemm_int4", {"contiguous": False}, "not contiguous"),
        ("gemm_int4", {"n": 192}, "n=192 is no multiple of 128"),
        ("gemm_int4", {"k": 4128, "group_size": 32}, "k=4128 is no multiple of 64"),
        ("gemm_int8", {"k": 320}, "the last group is shorter: k=320"),
        ("gemm_int2", {"zeros": "float"}, "rounded to half precision"),
        ("gemm_int8", {"act_order": True}, "act-order"),
        ("gemm_int8", {"bias": True}, "a bias is no weight"),
    ],
)
def test_what_it_has_no_kernel_for_is_told(op: str, dims: dict[str, Value], told: str) -> None:
    given: dict[str, Any] = {"m": 16, "n": 4096, "k": 4096, **dims}
    assert told in reasons(problem_of(op, **given))


def test_other_gpus_are_told_and_new_ones_have_the_library_choose() -> None:
    problem = problem_of("gemm_int4", 16, 4096, 4096)
    assert "needs compute capability 8.0" in reasons(problem, Device.without_hardware("sm_75"))
    assert "NVIDIA" in reasons(problem, Device.without_hardware("gfx942"))
    blackwell = Device.without_hardware("sm_100")
    assert not reasons(problem, blackwell)
    assert "8.x and 9.0" in "; ".join(HummingTiles("gemm_int4").unsupported(problem, blackwell))


def test_a_missing_library_is_a_reason_with_its_remedy(installed: Callable[[str], None]) -> None:
    installed("")
    for op, offered in OFFERED.items():
        for one in offered():
            told = "; ".join(one.unsupported(problem_of(op, 16, 4096, 4096), H200))
            assert told == "humming-kernels is not installed (pip install 'kernel-registry[humming]')"


# what is compiled


def variant_key(one: HummingHeuristic | HummingTiles, problem: Problem) -> str:
    (made,) = one.variants(problem, one.default(problem, H200), H200, Signature(Arguments("", {}), {}))
    return made.key


def test_a_tile_is_one_kernel_for_all_rows_and_the_library_s_choice_one_for_some() -> None:
    tiled, chosen = HummingTiles("gemm_int4"), HummingHeuristic("gemm_int4")
    few, more = (problem_of("gemm_int4", m, 4096, 4096) for m in (57, 64))
    many = problem_of("gemm_int4", 65, 4096, 4096)
    assert variant_key(tiled, few) == variant_key(tiled, more)
    assert variant_key(chosen, few) == variant_key(chosen, more) != variant_key(chosen, many)


def test_rows_are_asked_for_in_the_library_s_steps() -> None:
    assert [kernels.sampled(m) for m in (1, 3, 8, 9, 1024, 1025, 2049, 4097, 8128, 10**6)] == [
        1, 4, 8, 16, 1024, 1040, 2080, 4160, 8128, 8128,
    ]  # fmt: skip


def test_another_version_of_the_library_is_another_fingerprint(installed: Callable[[str], None]) -> None:
    was = HummingTiles("gemm_int4").fingerprint()
    installed("0.1.20")
    assert HummingTiles("gemm_int4").fingerprint() != was


# the tiles


@pytest.mark.parametrize("device", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("op", ["gemm_int4", "gemm_int8"])
def test_a_space_is_small_and_holds_its_default(device: Device, op: str) -> None:
    for n, k in ((28672, 4096), (4096, 14336), (128, 64), (384, 192)):
        for m in (1, 5, 16, 32, 64, 128, 256, 1024, 4096):
            problem = problem_of(op, m, n, k, 64)
            space = tiles.space(problem, device)
            assert 0 < len(space) <= 200
            assert tiles.default(problem, device) in space


def test_a_tile_divides_the_weight_and_its_warps_divide_the_tile() -> None:
    for n, k in ((28672, 4096), (384, 192)):
        for m in (1, 64, 1024):
            for config in tiles.space(problem_of("gemm_int4", m, n, k, 64), H200):
                tile = tiles.tuning(config)
                (rows, columns, depth), (warp_rows, warp_columns, warp_depth) = tile["block_shape"], tile["warp_shape"]
                assert rows == warp_rows
                assert [n % columns, k % depth, columns % warp_columns, depth % warp_depth] == [0, 0, 0, 0]
                assert tile["mma_type"] == "mma" or columns // warp_columns % 4 == 0
                assert tile["multi_cast_size_a"] == 1 or n % (2 * columns) == 0


def test_the_default_has_mma_for_few_rows_and_wider_tiles_for_many() -> None:
    chosen = [tiles.default(problem_of("gemm_int4", m, 28672, 4096), H200) for m in (1, 64, 256, 4096)]
    assert [(one["mma"], one["tokens"], one["columns"]) for one in chosen] == [
        ("mma", 8, 128), ("wgmma", 64, 128), ("wgmma", 128, 256), ("wgmma", 176, 256),
    ]  # fmt: skip


def test_its_own_choice_is_left_out_where_many_blocks_share_a_sum() -> None:
    narrow, wide = problem_of("gemm_int4", 300, 512, 4096), problem_of("gemm_int4", 300, 2048, 4096)
    told = "; ".join(HummingHeuristic("gemm_int4").unsupported(narrow, H200))
    assert "add their parts of a sum in half precision" in told
    assert not any("half precision" in told for told in HummingHeuristic("gemm_int4").unsupported(wide, H200))
    assert not any("half precision" in told for told in HummingTiles("gemm_int4").unsupported(narrow, H200))

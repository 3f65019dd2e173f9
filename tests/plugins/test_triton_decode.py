"""attention_decode's Triton kernels without a GPU: shared memory, conversions of bytes, and the dependent launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from registry.artifact import Artifact
from registry.device import Device
from registry.space import Config
from registry_triton.attention.decode import SplitKvDecode, WholeDecode, _Tile
from registry_triton.attention.decode_int8 import SplitInt8Decode, WholeInt8Decode

from ..tiers import THOROUGH
from .test_triton import A100, DECODE, H200, MI300, problem_of, signature

FLOAT8, INT8 = {"kv_dtype": "float8_e4m3fn"}, {"kv_dtype": "int8"}
WIDE = {"head_dim": 256, "heads": 16}
WIDEST = {"head_dim": 512, "heads": 16}
TOKENS = {"q_len": 16}
OFTEN = [
    pytest.param({**dims, "page": page}, dtype, id=f"{page}-{dtype}-{dims}", marks=() if quick else THOROUGH)
    for page in (16, False)
    for dtype in ("bfloat16", "float32")
    for dims, quick in (
        ({}, False), (WIDE, False), (WIDEST, False), (TOKENS, False), (FLOAT8, False),
        ({**FLOAT8, **TOKENS, **WIDE}, dtype == "bfloat16" and not page),
    )
]  # fmt: skip


def compiled(form: WholeDecode | SplitKvDecode, dims: Mapping[str, Any], dtype: str, config: Config) -> list[Artifact]:
    problem = problem_of("attention_decode", {**DECODE, **dims}, dtype)
    variants = form.variants(problem, config, H200, signature(problem, form, config, H200))
    return [form.compile(variant, H200.target) for variant in variants]


def default(form: WholeDecode | SplitKvDecode, dims: Mapping[str, Any], dtype: str = "bfloat16") -> Config:
    return form.default(problem_of("attention_decode", {**DECODE, **dims}, dtype), H200)


def assembly(artifact: Artifact) -> str:
    """The PTX of a compiled kernel, which Triton keeps beside its description."""
    (found,) = Path(artifact.path).parent.glob("*.ptx")
    return found.read_text()


@pytest.mark.parametrize(("dims", "dtype"), OFTEN)
@pytest.mark.thorough
def test_the_largest_configuration_fits_and_was_counted(dims: Mapping[str, Any], dtype: str) -> None:
    form, problem = WholeDecode(), problem_of("attention_decode", {**DECODE, **dims}, dtype)
    tile = _Tile.of(problem)
    largest = max(form.space(problem, H200).configs, key=lambda config: tile.shared_bytes(config, H200))
    (artifact,) = compiled(form, dims, dtype, largest)
    assert artifact.resources["shared_bytes"] <= tile.shared_bytes(largest, H200) <= H200.shared_bytes


# the split form in bfloat16 is what test_triton.py compiles, too
@pytest.mark.parametrize(("kv", "dtype"), [({}, "bfloat16"), pytest.param(FLOAT8, "float32", marks=THOROUGH)], ids=str)
@pytest.mark.thorough
def test_the_two_forms_need_as_much(kv: Mapping[str, Any], dtype: str) -> None:
    dims = {**kv, "page": 16, "batch": 1}
    config = default(SplitKvDecode(), dims, dtype)
    whole = {name: value for name, value in config.items() if name != "keys"}
    split, alone = compiled(SplitKvDecode(), dims, dtype, config), compiled(WholeDecode(), dims, dtype, whole)
    assert abs(split[0].resources["shared_bytes"] - alone[0].resources["shared_bytes"]) <= 1024


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=THOROUGH)])
@pytest.mark.thorough
def test_float8_is_converted_two_at_a_time_and_not_read_byte_by_byte(dtype: str) -> None:
    dims = {**FLOAT8, "page": 16}
    config = default(WholeDecode(), dims, dtype)
    (artifact,) = compiled(WholeDecode(), dims, dtype, config)
    text = assembly(artifact)
    each = 2 * config["BLOCK"] * 128 // (32 * config["num_warps"])
    assert text.count("cvt.rn.f16x2.e4m3x2") == each // 2
    assert not re.search(r"cvt\.\S*bf16\.f16|ld\.shared\.[bu]8", text)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text
    assert "cp.async" in text


@pytest.mark.parametrize(
    ("form", "dims", "dtype"),
    [
        (WholeInt8Decode(), {"page": 16}, "bfloat16"),
        pytest.param(SplitInt8Decode(), {"page": 16, "batch": 1}, "bfloat16", marks=THOROUGH),
        pytest.param(WholeInt8Decode(), {"page": False}, "float16", marks=THOROUGH),
        pytest.param(WholeInt8Decode(), {"page": 16, **TOKENS}, "float16", marks=THOROUGH),
        pytest.param(WholeInt8Decode(), {"page": 16, **WIDE}, "bfloat16", marks=THOROUGH),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_int8_is_converted_four_at_a_time_and_not_read_byte_by_byte(
    form: WholeDecode | SplitKvDecode, dims: Mapping[str, Any], dtype: str
) -> None:
    config = default(form, {**INT8, **dims}, dtype)
    artifact = compiled(form, {**INT8, **dims}, dtype, config)[0]
    text = assembly(artifact)
    width = dims.get("head_dim", 128)
    each = 2 * config["BLOCK"] * width // (32 * config["num_warps"])
    # a permutation of bytes for each pair
    assert text.count("0x64646464") == each // 2
    assert not re.search(r"cvt\.\S*\.[su]8|ld\.shared\.[bsu]8", text)
    assert re.search(r"(mma\.sync|wgmma\.mma_async)\S*\.f32\.f16\.f16", text)
    assert "cp.async" in text
    assert artifact.resources["spill_bytes"] == 0
    assert artifact.resources["shared_bytes"] <= _Tile.of(
        problem_of("attention_decode", {**DECODE, **INT8, **dims})
    ).shared_bytes(config, H200)


@pytest.mark.thorough
def test_the_second_launch_waits_before_it_reads_what_the_first_wrote() -> None:
    # what test_triton.py compiles, too
    dims = {"batch": 1, "page": 16}
    first, second = map(assembly, compiled(SplitKvDecode(), dims, "bfloat16", default(SplitKvDecode(), dims)))
    assert first.count("griddepcontrol.launch_dependents") == 1
    before, after = second.split("griddepcontrol.wait")
    # the length alone; tops, totals and parts come after
    assert before.count("ld.global") == 1
    assert after.count("ld.global") >= 3


@pytest.mark.parametrize(("device", "dependent"), [(H200, True), (A100, False), (MI300, False)], ids=str)
def test_only_hopper_and_later_launch_dependents(device: Device, dependent: bool) -> None:
    problem, form = problem_of("attention_decode", {**DECODE, "batch": 1}), SplitKvDecode()
    config = form.default(problem, device)
    first, second = form.launch(problem, config, device)
    assert first.constants["DEPENDENT"] == second.constants["DEPENDENT"] == dependent
    assert second.options.get("launch_pdl", False) == dependent
    assert "launch_pdl" not in first.options
    assert form.variants(problem, config, device, signature(problem, form, config, device))


@pytest.mark.parametrize(("device", "ptx"), [(H200, True), (A100, True), (MI300, False)], ids=str)
def test_the_launches_of_int8_are_those_of_other_caches_with_a_kernel_of_their_own(device: Device, ptx: bool) -> None:
    for form, usual in ((WholeInt8Decode(), WholeDecode()), (SplitInt8Decode(), SplitKvDecode())):
        problem = problem_of("attention_decode", {**DECODE, **INT8, "batch": 1})
        assert not list(form.unsupported(problem, device))
        assert "its cache is int8, not auto" in list(form.unsupported(problem_of("attention_decode", DECODE), device))
        config = form.default(problem, device)
        assert config == usual.default(problem, device)
        made, known = (one.launch(problem, config, device) for one in (form, usual))
        first, *rest = made if isinstance(made, list) else [made]
        other, *others = known if isinstance(known, list) else [known]
        assert (first.grid, first.args, first.options, rest) == (other.grid, other.args, other.options, others)
        assert first.kernel is not other.kernel
        assert first.constants["PTX"] is ptx
        assert set(first.constants) ^ set(other.constants) == {"PTX", "FLOAT8"}


def test_few_sequences_are_split_over_all_multiprocessors_and_many_take_long_steps() -> None:
    one, many = (default(SplitKvDecode(), {"batch": batch}) for batch in (1, 64))
    programs = problem_of("attention_decode", DECODE).kv_heads * (8192 // one["keys"])
    assert H200.multiprocessors <= programs <= 2 * H200.multiprocessors
    assert (many["BLOCK"], many["num_warps"], many["num_stages"]) == (128, 4, 4)
    paged = default(SplitKvDecode(), {"batch": 16, "page": 16})
    assert dict(paged) == {"keys": 2048, "BLOCK": 64, "num_warps": 4, "num_stages": 5}
    whole = default(WholeDecode(), {"batch": 16})
    assert dict(whole) == {"BLOCK": 128, "num_warps": 4, "num_stages": 3}

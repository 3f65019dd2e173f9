"""Attention by tiles that TMA copies: what Triton compiles for Hopper has specialised warps where it should."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.artifact import Artifact
from registry.contracts import ATTENTION
from registry.device import Device
from registry.errors import CompileError
from registry.problem import Problem, Value
from registry.space import Config

from ..tiers import THOROUGH
from .test_triton import A100, H200, HEADS, IMPLEMENTATIONS, MI300, problem_of, signature

SPECIALIZED = IMPLEMENTATIONS["attention triton.flash_specialized"]
B200 = replace(H200, name="NVIDIA B200", architecture="sm_100")
LONG: Mapping[str, Value] = {**HEADS, "batch": 1, "q_len": 8192, "kv_len": 8192}
COPIES, PRODUCTS, WAITS = "cp.async.bulk.tensor", "wgmma.mma_async", "mbarrier.try_wait"
FORMS: list[Any] = [
    ({}, {}),
    ({"head_dim": 64, "causal": False}, {"BLOCK_M": 256, "BLOCK_N": 64, "num_stages": 4}),
    *(
        pytest.param(*form, marks=THOROUGH)
        for form in (
            ({"dtype": "float16", "head_dim": 96}, {"BLOCK_N": 64, "num_stages": 3}),
            ({"softcap": True}, {"blocks_per_program": 1}),
            ({"span": 1024, "softcap": True}, {}),
            ({"span": 1024, "causal": False, "kv_heads": 32}, {}),
            ({"head_dim": 16}, {}),
        )
    ),
]


def compiled(problem: Problem, config: Config, device: Device = H200) -> Artifact:
    known = signature(problem, SPECIALIZED, config, device)
    (variant,) = SPECIALIZED.variants(problem, config, device, known)
    return SPECIALIZED.compile(variant, device.target)


def text_of(artifact: Artifact, suffix: str) -> str:
    """A stage of the compilation, which Triton keeps beside the result."""
    return Path(artifact.path).with_suffix(suffix).read_text()


@pytest.mark.parametrize(("more", "config"), FORMS, ids=str)
def test_warps_are_specialised(more: Mapping[str, Value], config: Mapping[str, Value]) -> None:
    problem = problem_of("attention", {**LONG, **more})
    whole = {**SPECIALIZED.default(problem, H200), **config}
    assert whole["SPECIALIZED"]
    assert whole in SPECIALIZED.space(problem, H200)
    artifact = compiled(problem, whole)
    assert (artifact.resources["threads"], artifact.resources["spill_bytes"]) == (384, 0)
    ptx, ttgir = text_of(artifact, ".ptx"), text_of(artifact, ".ttgir")
    assert len(re.findall(r"ttg\.warp_specialize\(", ttgir)) == 1
    # the copying warps give registers, the computing ones take them, together as many as an SM has
    taken = [int(count) for count in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", ptx)]
    assert taken.count(232) == 2
    assert 128 * (2 * 232 + min(taken)) <= H200.registers
    assert all(name in ptx for name in (COPIES, PRODUCTS, WAITS))
    check_copies(ttgir, whole)


def check_copies(ttgir: str, config: Config) -> None:
    """What each copy writes is what its barrier expects and its descriptor has: half of the queries, all of the keys.

    A copy of another size would be written beside its tile, and waited for without end.
    """
    copies = re.findall(
        r"barrier_expect %\S+, (\d+).*?\n(?:.*\n){0,3}?.*async_tma_copy_global_to_local.*?"
        r"tensordesc<(?:tensor<)?(\d+)x(\d+)x\w+, .*-> !ttg\.memdesc<(\d+)x(\d+)x",
        ttgir,
    )
    rows = []
    for expected, *sizes in copies:
        height, width, copied_rows, copied_cols = map(int, sizes)
        assert (height, width) == (copied_rows, copied_cols)
        assert int(expected) == height * width * 2
        rows.append(height)
    assert sorted(rows) == sorted([int(config["BLOCK_M"]) // 2] * 2 + [int(config["BLOCK_N"])] * 2)


@pytest.mark.parametrize("more", [{}, {"head_dim": 64}, {"causal": False}, {"span": 1024}, {"softcap": True}], ids=str)
@pytest.mark.thorough
def test_every_configuration_compiles_without_spilling(more: Mapping[str, Value]) -> None:
    problem = problem_of("attention", {**LONG, **more})
    for config in SPECIALIZED.space(problem, H200).configs:
        resources = compiled(problem, config).resources
        assert resources["spill_bytes"] == 0, config
        assert resources["shared_bytes"] <= H200.shared_bytes, config
        assert not config["SPECIALIZED"] or resources["threads"] == 384, config


def test_warps_that_the_compiler_leaves_as_they_are_are_told() -> None:
    problem = problem_of("attention", {**LONG, "head_dim": 64})
    config = {**SPECIALIZED.default(problem, H200), "num_warps": 8}
    with pytest.raises(CompileError, match=r"has 256 threads, of 384 .*did not specialise them for sm_90"):
        compiled(problem, config)


def test_other_gpus_have_no_specialised_warps() -> None:
    problem = problem_of("attention", LONG)
    assert {config["SPECIALIZED"] for config in SPECIALIZED.space(problem, H200).configs} == {True, False}
    assert {config["SPECIALIZED"] for config in SPECIALIZED.space(problem, B200).configs} == {False}
    assert compiled(problem, SPECIALIZED.default(problem, B200), B200).resources["threads"] == 256
    for device in (A100, MI300):
        (reason,) = SPECIALIZED.unsupported(problem, device)
        assert reason == f"it copies tiles by TMA, from compute capability 9.0 on; this is {device.architecture}"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"mask": "bool"}, "it takes no mask"),
        ({"dtype": "float32"}, "dtype float32 (supported: float16, bfloat16)"),
        ({"head_dim": 136}, "head_dim=136 (limit 128)"),
        ({"head_dim": 20}, "the heads of q do not start at multiples of 16 bytes"),
    ],
    ids=str,
)
def test_reasons_are_told(more: Mapping[str, Value], reason: str) -> None:
    assert reason in SPECIALIZED.unsupported(problem_of("attention", {**LONG, **more}), H200)


def test_layouts_that_tma_cannot_copy_are_told() -> None:
    def told(*heads: torch.Tensor, **attributes: Any) -> list[str]:
        problem = ATTENTION.pose(ATTENTION.arguments(ATTENTION.bind(heads, attributes)))
        return list(SPECIALIZED.unsupported(problem, H200))

    x = torch.randn(2, 9, 4, 24).half()
    parts = [torch.randn(2, 9, 12, 24).half()[:, :, first : first + 4] for first in (0, 4, 8)]
    assert not told(*parts)
    assert not told(*(x.transpose(1, 2).contiguous().transpose(1, 2) for _ in range(3)))
    assert not told(x[..., :16], x[..., 8:], x[..., :16])
    assert told(x[..., :16], x[..., 4:20], x[..., :16]) == ["the heads of k do not start at multiples of 16 bytes"]
    assert told(x, torch.randn(2, 9, 4, 25).half()[..., :24], x) == [
        "the heads of k do not start at multiples of 16 bytes"
    ]
    assert told(x, x, x[:, :1].expand(-1, 9, -1, -1)) == ["the tokens of v overlap"]
    assert not told(x, x, x, scale=0.125)
    assert told(x, x[:, :0], x[:, :0]) == ["there are no keys"]
    for scale in (-0.125, 0.0):
        assert told(x, x, x, scale=scale) == [f"scale={scale} (at least 1e-30)"]

"""cuda.staged, the gradients of rms_norm over rows that stay with one block: reasons, spaces, defaults, compilation."""

from __future__ import annotations

import pytest
import torch

from registry.artifact import Signature
from registry.contracts.norm_backward import RMS_NORM_BACKWARD
from registry.device import Device
from registry.problem import Arguments, Problem
from registry_cuda.norm_backward import StagedRmsNormBackward

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NORM = StagedRmsNormBackward()


def problem_of(cols: int, dtype: str = "bfloat16", rows: int = 4096, **traits: bool) -> Problem:
    return Problem("rms_norm_backward", {"rows": rows, "cols": cols, "dtype": dtype}, {"aligned": True, **traits})


def test_other_lengths_and_layouts_are_refused() -> None:
    told = [reason.split(" of ")[0] for reason in NORM.unsupported(problem_of(2052, aligned=False), A100)]
    assert told == ["the copy engine is", "tensors do not begin at multiples", "a row"]
    for cols in (1024, 16_448):
        (reason,) = NORM.unsupported(problem_of(cols), H200)
        assert reason == f"cols={cols} is not between 2048 and 16384"
    (reason,) = NORM.unsupported(problem_of(12_288, "float32"), H200)
    assert reason == "a row of 12288 float32 does not fit in the registers and shared memory of a block"


@pytest.mark.parametrize(
    ("cols", "dtype"),
    [
        *((cols, dtype) for dtype in ("bfloat16", "float16") for cols in (2048, 4096, 8200, 16_384)),
        *((cols, "float32") for cols in (2048, 4100, 8192)),
    ],
)
def test_the_default_is_in_a_space_that_fits(cols: int, dtype: str) -> None:
    problem = problem_of(cols, dtype)
    assert not list(NORM.unsupported(problem, H200))
    space = NORM.space(problem, H200)
    assert 1 <= len(space) <= 60
    assert NORM.default(problem, H200) in space
    for config in space:
        rows, sums = NORM.launch(problem, config, H200)
        beside = 2 * 8 * config["threads"] // 32 + 1024
        assert config["blocks"] * (rows.shared_bytes + beside) <= 228 * 1024
        assert rows.grid == (132 * config["blocks"],)
        assert sums.grid == (-(-cols // 32),)


def arguments_of(need_x: bool = True, need_weight: bool = True) -> Arguments:
    rows, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((4096, 8192), (8192,)))
    return RMS_NORM_BACKWARD.arguments((rows, rows, weight, 1e-6, need_x, need_weight))


@pytest.mark.thorough
def test_the_default_compiles_without_spilling() -> None:
    arguments = arguments_of()
    problem = RMS_NORM_BACKWARD.pose(arguments)
    config = NORM.default(problem, H200)
    outputs = RMS_NORM_BACKWARD.output_specs(arguments, torch.device("cpu"))
    made = Signature(arguments, outputs, NORM.scratch(problem, config, H200))
    variants = NORM.variants(problem, config, H200, made)
    assert [NORM.compile(variant, H200.target).resources["spill_bytes"] for variant in variants] == [0, 0]


@pytest.mark.parametrize(("need_x", "need_weight"), [(True, False), (False, True), (True, True)])
def test_gradients_that_nobody_needs_are_not_computed(need_x: bool, need_weight: bool) -> None:
    problem = RMS_NORM_BACKWARD.pose(arguments_of(need_x, need_weight))
    config = NORM.default(problem, H200)
    first, *sums = NORM.launch(problem, config, H200)
    assert (first.constants["NEED_X"], first.constants["NEED_WEIGHT"]) == (need_x, need_weight)
    assert [launch.kernel.name for launch in sums] == ["sum_partial"] * need_weight
    assert list(NORM.scratch(problem, config, H200)) == ["partial"] * need_weight

"""cuda.staged, rows in the shared memory of a cluster or of a block: reasons, spaces and defaults, compilation."""

from __future__ import annotations

import pytest
import torch

from registry.artifact import Signature
from registry.contracts.norm_backward import RMS_NORM_BACKWARD
from registry.device import Device
from registry.problem import Arguments, Problem, Value
from registry_cuda.norm_backward import StagedRmsNormBackward
from registry_cuda.staged import StagedRows, StagedSoftmax, StagedSoftmaxBackward

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})
BOTH = pytest.mark.parametrize("implementation", [StagedSoftmax(), StagedSoftmaxBackward()], ids=lambda one: one.op)
COLUMNS = (16_384, 32_000, 50_264, 128_256, 151_936, 262_144)


def problem_of(
    implementation: StagedRows, cols: int, dtype: str = "bfloat16", rows: int = 1024, **traits: bool
) -> Problem:
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "dtype": dtype}
    return Problem(implementation.op, dims, {"aligned": True, **traits})


@BOTH
def test_every_reason_is_given(implementation: StagedRows) -> None:
    def told(problem: Problem, device: Device = H200) -> list[str]:
        return [reason.split(" of ")[0] for reason in implementation.unsupported(problem, device)]

    assert told(problem_of(implementation, 128_256, "float64", contiguous=False)) == [
        "float64 is not one", "tensors are not contiguous",
    ]  # fmt: skip
    assert told(problem_of(implementation, 128_256), A100) == ["the copy engine is"]
    assert told(problem_of(implementation, 50_257, aligned=False)) == [
        "tensors do not begin at multiples", "a row",
    ]  # fmt: skip
    (short,) = implementation.unsupported(problem_of(implementation, 4096), H200)
    assert short == "a row of 8192 bytes is too short for shared memory (from 16384 on)"
    (long,) = implementation.unsupported(problem_of(implementation, 2_000_000), H200)
    assert long == "a row of 4000000 bytes does not fit in the shared memory of a cluster"
    (many,) = implementation.unsupported(problem_of(implementation, 32_000, rows=2**29), H200)
    assert many.startswith("536870912 rows are more than a grid")


@BOTH
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_spaces_hold_their_default_and_fit_a_multiprocessor(implementation: StagedRows, dtype: str) -> None:
    for cols in COLUMNS:
        problem = problem_of(implementation, cols, dtype)
        if list(implementation.unsupported(problem, H200)):
            assert (implementation.op, dtype, cols) == ("softmax_backward", "float32", 262_144)
            continue
        space = implementation.space(problem, H200)
        assert 1 <= len(space) <= 60
        assert implementation.default(problem, H200) in space
        for config in space:
            launch = implementation.launch(problem, config, H200)
            resident = launch.constants["RESIDENT"]
            # two numbers of each warp of the cluster, and what the driver keeps for itself
            beside = 8 * config["cluster"] * config["threads"] // 32 + 1024
            assert resident * (launch.shared_bytes + beside) <= 228 * 1024
            assert resident * config["threads"] <= 2048
            assert launch.grid == (1024 * config["cluster"],)


@BOTH
def test_one_variant_serves_all_row_counts(implementation: StagedRows) -> None:
    config = implementation.default(problem_of(implementation, 128_256), H200)
    problems = [problem_of(implementation, 128_256, rows=rows) for rows in (1, 4096)]
    found = [implementation.variants(problem, config, H200, NOTHING) for problem in problems]
    assert len({tuple(variant.key for variant in each) for each in found}) == 1


@BOTH
def test_the_default_compiles_without_spilling(implementation: StagedRows) -> None:
    problem = problem_of(implementation, 128_256)
    (variant,) = implementation.variants(problem, implementation.default(problem, H200), H200, NOTHING)
    built = implementation.compile(variant, H200.target)
    assert built.resources["spill_bytes"] == 0
    assert built.resources["registers"] <= 64


@BOTH
def test_many_long_rows_prefer_it_and_few_or_short_ones_do_not(implementation: StagedRows) -> None:
    asked = [(128_256, 1024), (128_256, 4), (16_384, 1024)]
    told = [implementation.preference(problem_of(implementation, cols, rows=rows), H200) for cols, rows in asked]
    assert told[0] > 1 > max(told[1:])


# gradients of rms_norm, whose rows stay with one block

NORM = StagedRmsNormBackward()


def norm_problem(cols: int, dtype: str = "bfloat16", rows: int = 4096, **traits: bool) -> Problem:
    return Problem("rms_norm_backward", {"rows": rows, "cols": cols, "dtype": dtype}, {"aligned": True, **traits})


def test_norms_of_other_lengths_and_layouts_are_refused() -> None:
    told = [reason.split(" of ")[0] for reason in NORM.unsupported(norm_problem(2052, aligned=False), A100)]
    assert told == ["the copy engine is", "tensors do not begin at multiples", "a row"]
    for cols in (1024, 16_448):
        (reason,) = NORM.unsupported(norm_problem(cols), H200)
        assert reason == f"cols={cols} is not between 2048 and 16384"
    (reason,) = NORM.unsupported(norm_problem(12_288, "float32"), H200)
    assert reason == "a row of 12288 float32 does not fit in the registers and shared memory of a block"


@pytest.mark.parametrize(
    ("cols", "dtype"),
    [
        *((cols, dtype) for dtype in ("bfloat16", "float16") for cols in (2048, 4096, 8200, 16_384)),
        *((cols, "float32") for cols in (2048, 4100, 8192)),
    ],
)
def test_norms_have_their_default_in_a_space_that_fits(cols: int, dtype: str) -> None:
    problem = norm_problem(cols, dtype)
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


def norm_arguments(need_x: bool = True, need_weight: bool = True) -> Arguments:
    rows, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((4096, 8192), (8192,)))
    return RMS_NORM_BACKWARD.arguments((rows, rows, weight, 1e-6, need_x, need_weight))


@pytest.mark.thorough
def test_norms_default_compiles_without_spilling() -> None:
    arguments = norm_arguments()
    problem = RMS_NORM_BACKWARD.pose(arguments)
    config = NORM.default(problem, H200)
    outputs = RMS_NORM_BACKWARD.output_specs(arguments, torch.device("cpu"))
    made = Signature(arguments, outputs, NORM.scratch(problem, config, H200))
    variants = NORM.variants(problem, config, H200, made)
    assert [NORM.compile(variant, H200.target).resources["spill_bytes"] for variant in variants] == [0, 0]


@pytest.mark.parametrize(("need_x", "need_weight"), [(True, False), (False, True), (True, True)])
def test_norms_gradients_that_nobody_needs_are_not_computed(need_x: bool, need_weight: bool) -> None:
    problem = RMS_NORM_BACKWARD.pose(norm_arguments(need_x, need_weight))
    config = NORM.default(problem, H200)
    first, *sums = NORM.launch(problem, config, H200)
    assert (first.constants["NEED_X"], first.constants["NEED_WEIGHT"]) == (need_x, need_weight)
    assert [launch.kernel.name for launch in sums] == ["sum_partial"] * need_weight
    assert list(NORM.scratch(problem, config, H200)) == ["partial"] * need_weight

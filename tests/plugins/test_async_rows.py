"""cuda.async, rows in the shared memory of a block or of a cluster: reasons, spaces and defaults, compilation."""

from __future__ import annotations

import pytest

from registry.artifact import Signature
from registry.device import Device
from registry.problem import Arguments, Problem, Value
from registry_cuda.async_rows import AsyncRmsNorm, AsyncRows, AsyncSoftmax, AsyncSoftmaxBackward

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
T4 = Device("cuda", 0, "Tesla T4", "sm_75", 40, 16 << 30, 4 << 20)
NOTHING = Signature(Arguments("", {}), {})
EACH = pytest.mark.parametrize(
    "implementation", [AsyncSoftmax(), AsyncSoftmaxBackward(), AsyncRmsNorm()], ids=lambda one: one.op
)
COLUMNS = (16_384, 32_000, 50_257, 50_264, 128_256, 151_936, 262_144)


def problem_of(
    implementation: AsyncRows, cols: int, dtype: str = "bfloat16", rows: int = 1024, **traits: bool
) -> Problem:
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "dtype": dtype}
    return Problem(implementation.op, dims, {"aligned": True, "mixed": False, **traits})


@EACH
def test_every_reason_is_given(implementation: AsyncRows) -> None:
    def told(problem: Problem, device: Device = H200) -> list[str]:
        return [reason.split(" of ")[0] for reason in implementation.unsupported(problem, device)]

    assert told(problem_of(implementation, 128_256, "float64", contiguous=False)) == [
        "float64 is not one", "tensors are not contiguous",
    ]  # fmt: skip
    assert told(problem_of(implementation, 8192), T4) == ["copies need compute capability 8.0, this GPU has 7.5"]
    assert told(problem_of(implementation, 50_257, aligned=False)) == [
        "tensors do not begin at multiples", *(["a row"] if implementation.op == "rms_norm" else []),
    ]  # fmt: skip
    (short,) = implementation.unsupported(problem_of(implementation, 4096), H200)
    assert short == "a row of 8192 bytes is too short for shared memory (from 16384 on)"
    (long,) = implementation.unsupported(problem_of(implementation, 2_000_000), H200)
    assert long == "a row of 4000000 bytes does not fit in the shared memory of 8 blocks"
    (long,) = implementation.unsupported(problem_of(implementation, 128_256), A100)
    assert long == "a row of 256512 bytes does not fit in the shared memory of a block"
    (many,) = implementation.unsupported(problem_of(implementation, 32_000, rows=2**29), H200)
    assert many.startswith("536870912 rows are more than a grid")


@EACH
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_spaces_hold_their_default_and_fit_a_multiprocessor(implementation: AsyncRows, dtype: str) -> None:
    for cols in COLUMNS:
        problem = problem_of(implementation, cols, dtype)
        if reasons := list(implementation.unsupported(problem, H200)):
            if "no multiple" not in reasons[0]:
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


@EACH
def test_one_variant_serves_all_row_counts(implementation: AsyncRows) -> None:
    config = implementation.default(problem_of(implementation, 128_256), H200)
    problems = [problem_of(implementation, 128_256, rows=rows) for rows in (1, 4096)]
    found = [implementation.variants(problem, config, H200, NOTHING) for problem in problems]
    assert len({tuple(variant.key for variant in each) for each in found}) == 1


@EACH
@pytest.mark.parametrize("cols", [128_256, 50_257])
@pytest.mark.few(2)
def test_the_default_compiles_without_spilling(implementation: AsyncRows, cols: int) -> None:
    problem = problem_of(implementation, cols)
    if list(implementation.unsupported(problem, H200)):
        pytest.skip("rows of whole vectors alone")
    config = implementation.default(problem, H200)
    (variant,) = implementation.variants(problem, config, H200, NOTHING)
    built = implementation.compile(variant, H200.target)
    assert built.resources["spill_bytes"] == 0
    assert built.resources["registers"] <= 64
    # rows lie behind what the kernel declares itself, and begin with a line
    assert (built.resources["shared_bytes"] - implementation.launch(problem, config, H200).shared_bytes) % 128 == 0


@EACH
def test_many_long_rows_prefer_it_and_few_or_short_ones_do_not(implementation: AsyncRows) -> None:
    asked = [(128_256, 1024), (128_256, 4), (16_384, 1024)]
    told = [implementation.preference(problem_of(implementation, cols, rows=rows), H200) for cols, rows in asked]
    assert told[0] > 1 > max(told[1:])

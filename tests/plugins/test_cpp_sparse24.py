"""The C++ product with a 2:4 sparse weight."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import registry
from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Launch
from registry.problem import Problem, Value
from registry.space import Config
from registry.sparse import dense
from registry.testing import check_implementation
from registry_cpp.cpu_features import missing
from registry_cpp.sparse.gemm_sparse24 import CppGemmSparse24, code_panels, value_panels

SPARSE24 = next(op for op in BOX if op.name == "gemm_sparse24")
CPU = Device.of("cpu")
DIMS: Mapping[str, Value] = {"n": 83, "k": 140, "bias": True, "dtype": "float32"}
"""No panel of columns and no word of K is full at the end."""


# configurations of float32 are tried at another odd size below
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.thorough), "float16", "bfloat16"])
@pytest.mark.usefixtures("one_thread")
@pytest.mark.few(1)
def test_each_dtype_is_right_at_odd_sizes(dtype: str) -> None:
    problems = [{**DIMS, "m": 5, "dtype": dtype}]
    assert check_implementation(CppGemmSparse24(), SPARSE24, problems=problems, device="cpu").ok


@pytest.mark.thorough
def test_the_examples_are_right() -> None:
    assert check_implementation(CppGemmSparse24(), SPARSE24, device="cpu").ok


SOME = ((1, 4, 4), (2, 2, 64), (8, 1, 16))
"""Rows, panels and words of K: each value at least once, but for 4 rows, of which the defaults above are."""


def _sizes(config: Config) -> tuple[object, ...]:
    return config["m_tile"], config["panels"], config["depth"]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.thorough)])
@pytest.mark.usefixtures("one_thread")
@pytest.mark.thorough
def test_every_configuration_is_within_the_tolerance(dtype: str) -> None:
    implementation = CppGemmSparse24()
    problem = SPARSE24.problem_of({**DIMS, "k": 2200, "m": 11, "dtype": dtype})
    values = SPARSE24.inputs(problem, "normal", torch.Generator().manual_seed(3))
    x, kept, meta, _, bias = (value.double() if is_real(value) else value for value in values)
    expected = x @ dense(kept, meta).T + bias
    space = implementation.space(problem, CPU)
    few = [config for config in space if config["threads"] == 1]
    assert len(few) >= 18
    for config in few if dtype == "bfloat16" else [config for config in few if _sizes(config) in SOME]:
        y = build(SPARSE24, Candidate(implementation, config), problem, SPARSE24.arguments(values), CPU)(*values)
        torch.testing.assert_close(y.double(), expected, rtol=8e-3 if dtype == "bfloat16" else 1e-5, atol=1e-5)


def is_real(value: object) -> bool:
    """True for a tensor of floating point."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def test_defaults_are_in_the_space() -> None:
    implementation = CppGemmSparse24()
    for m in (1, 2, 3, 5, 8, 33, 1000):
        problem = SPARSE24.problem_of({**DIMS, "m": m})
        assert not implementation.space(problem, CPU).violations(implementation.default(problem, CPU))


def test_panels_hold_each_column_in_its_lane() -> None:
    w = registry.sparsify24(torch.randn(20, 40))
    values, codes = value_panels(w.values), code_panels(w.meta)
    assert values.shape == (2, 16, 2, 16)
    assert codes.shape == (2, 2, 16)
    row, four = 18, 9
    code = int(w.meta[row, four // 8]) >> 4 * (four % 8)
    assert torch.equal(values[1, four, :, 2], w.values[row, 2 * four : 2 * four + 2])
    word = int(codes[1, four // 8, 2]) >> 2 * (four % 8)
    assert (word & 3, word >> 16 & 3) == (code & 3, code >> 2 & 3)
    assert not values[1, :, :, 4:].any()
    assert not values[:, 10:].any()


@pytest.mark.thorough
def test_bits_behind_k_are_not_read() -> None:
    """The last word of a row names places for fours that there are not."""
    w = registry.sparsify24(torch.randn(16, 12))
    x = torch.randn(2, 12)
    with registry.using(gemm_sparse24="cpp.gemm"):
        expected = registry.call("gemm_sparse24", x, w)
        noisy = w.meta | torch.tensor(-1 << 12, dtype=torch.int32)
        y = registry.call("gemm_sparse24", x, w.values, noisy, 12)
    assert torch.equal(y, expected)


class Avx2Sparse24(CppGemmSparse24):
    """As a CPU without AVX-512 compiles it."""

    flags = "-march=x86-64-v3"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        launch = super().launch(problem, config, device)
        return Launch(launch.kernel, launch.grid, launch.args, launch.constants, {"flags": [self.flags]})


class PlainSparse24(Avx2Sparse24):
    """As a CPU of x86-64's first vectors compiles it."""

    flags = "-march=x86-64"


@pytest.mark.skipif(bool(missing("avx2")), reason="names an x86-64 instruction set")
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (Avx2Sparse24, "bfloat16"),
        pytest.param(Avx2Sparse24, "float16", marks=pytest.mark.thorough),
        pytest.param(PlainSparse24, "float32", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.thorough
def test_older_instruction_sets_are_right(form: type[Avx2Sparse24], dtype: str) -> None:
    problems = [{**DIMS, "m": 3, "dtype": dtype}]
    assert check_implementation(form(), SPARSE24, problems=problems, device="cpu").ok

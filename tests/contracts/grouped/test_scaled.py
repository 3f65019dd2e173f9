"""Products of float8 and int8 rows grouped by expert: mutants that some inputs refuse, calls, and what is no call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry.contract import as_tuple
from registry.contracts import GROUPED_SCALED_MM as OP
from registry.correctness import numerics
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import InvalidArgumentError
from registry.problem import Problem
from registry.testing import check_implementation
from registry_torch.scaled_mm import row_scale_reasons

from .cases import case, refused

Tensor = torch.Tensor
SHAPES: tuple[tuple[int, int, str, str, str], ...] = (
    (70, 6, "uniform", "bfloat16", "float8_e4m3fn"),
    (33, 9, "skewed", "float16", "int8"),
    (9, 5, "skewed", "float32", "float8_e4m3fn"),
)
ROUNDED = ("float8_e4m3fn", "int8")


@cache
def problems() -> list[Problem]:
    return [
        OP.problem_of({
            "m": m, "n": 24, "k": 136, "experts": experts, "routing": routing, "out_dtype": out_dtype, "dtype": dtype,
        })
        for m, experts, routing, out_dtype, dtype in SHAPES
    ]  # fmt: skip


def rolled(name: str, dim: int) -> Callable[[dict[str, Any]], Any]:
    def compute(named: dict[str, Any]) -> Tensor:
        given: Tensor = named[name]
        # float8 is not rolled
        return given.view(torch.uint8).roll(1, dim).view(given.dtype) if given.itemsize == 1 else given.roll(1, dim)

    return compute


def without_last(name: str) -> Callable[[dict[str, Any]], Any]:
    def compute(named: dict[str, Any]) -> Tensor:
        kept: Tensor = named[name].clone()
        kept.view(torch.uint8)[..., -1] = 0
        return kept

    return compute


def moved(named: dict[str, Any]) -> Tensor:
    offsets: Tensor = named["offsets"].clone()
    offsets[1:-1] += 1
    return offsets


def all_rows(named: dict[str, Any]) -> Tensor:
    offsets: Tensor = named["offsets"].clone()
    offsets[0], offsets[-1] = 0, named["x"].shape[0]
    return offsets


MUTANTS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    "weights of the next expert": {"weights": rolled("weights", 0)},
    "rows of the next column's weight": {"weights": rolled("weights", 1)},
    "scales of the next expert": {"scale_weights": rolled("scale_weights", 0)},
    "scales of the next column": {"scale_weights": rolled("scale_weights", 1)},
    "scales of the next row": {"scale_x": rolled("scale_x", 0)},
    "no scales of rows": {"scale_x": lambda named: torch.ones_like(named["scale_x"])},
    "last of K left out": {"x": without_last("x")},
    "row boundary one late": {"offsets": moved},
    "rows of nobody computed": {"offsets": all_rows},
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few(5)
def test_a_mutant_is_refused_by_some_kind(mutant: str) -> None:
    for problem in problems():
        assert refused(OP, problem, **MUTANTS[mutant]), problem


def test_operands_that_are_dequantised_first_are_right() -> None:
    for problem in problems():
        for kind in OP.kinds:
            values, reference, own = case(OP, problem, kind)
            x, weights, offsets, scale_x, scale_weights, out_dtype = values
            wide = registry.call("grouped_gemm", x.float() * scale_x, weights.float() * scale_weights, offsets)
            assert isinstance(wide, Tensor)
            y = wide.to(getattr(torch, out_dtype))
            assert numerics.compare(OP, problem, as_tuple(y), reference, own, values).message == ""


@pytest.mark.parametrize("name", ["torch.native", "torch.scaled_mm"])
def test_torchs_products_of_each_expert_are_right(name: str) -> None:
    catalog = Catalog()
    dims = [problem.dims for problem in problems()[:2]]
    if name == "torch.scaled_mm" and (told := list(row_scale_reasons())):
        pytest.skip(told[0])
    report = check_implementation(catalog.implementation(OP.name, name), OP, problems=dims, device="cpu")
    reasons = {reason for skipped in report.skipped for reason in ("contiguous", "dtype int8") if reason in skipped}
    assert reasons == (set() if name == "torch.native" else {"contiguous", "dtype int8"})


def test_the_grouped_kernel_says_what_it_does_not_take() -> None:
    implementation = Catalog().implementation(OP.name, "torch.scaled_grouped_mm")
    dims = {"m": 64, "n": 64, "k": 128, "experts": 4, "routing": "uniform", "out_dtype": "bfloat16"}
    hopper, ampere = map(Device.without_hardware, ("sm_90", "sm_80"))

    def reasons(device: Device, **change: Any) -> list[str]:
        problem = OP.problem_of({**dims, "dtype": "float8_e4m3fn", **change})
        return list(implementation.unsupported(problem, device))

    assert reasons(hopper) == []
    assert reasons(ampere) == ["its kernel is for compute capability 9.0"]
    for change, told in (
        ({"dtype": "int8"}, "dtype int8"),
        ({"n": 72}, "n=72 and k=128 must be multiples of 16"),
        ({"out_dtype": "float16"}, "an output in float16"),
        ({"experts": 1024}, "1024 experts"),
    ):
        (reason,) = reasons(hopper, **change)
        assert reason.startswith(told)


def quantized(shape: tuple[int, ...], dtype: str) -> tuple[Tensor, Tensor]:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    levels, scales = registry.call("quantize_per_token", drawn, dtype)
    return levels, scales


X, SCALE_X = quantized((6, 64), "float8_e4m3fn")
WEIGHTS, SCALE = quantized((3, 24, 64), "float8_e4m3fn")
ENDS = torch.tensor([1, 3, 3, 5])


@pytest.mark.parametrize("dtype", ROUNDED)
def test_a_call_multiplies_by_each_experts_weight(dtype: str) -> None:
    (x, scale_x), (weights, scale) = quantized((6, 64), dtype), quantized((3, 24, 64), dtype)
    exact = torch.zeros(6, 24, dtype=torch.float64)
    left, right = x.double() * scale_x, weights.double() * scale
    exact[1:3], exact[3:5] = left[1:3] @ right[0].T, left[3:5] @ right[2].T
    y = registry.call(OP.name, x, weights, ENDS, scale_x, scale)
    assert isinstance(y, Tensor)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact, rtol=0.01, atol=0.01)
    assert y[[0, 5]].eq(0).all()
    empty = registry.call(OP.name, x[:0], weights, ENDS * 0, scale_x[:0], scale, "float16")
    assert isinstance(empty, Tensor)
    assert (empty.shape, empty.dtype) == ((0, 24), torch.float16)


LONG = torch.zeros(1, 1, 2**17, dtype=torch.int8)
WRONG = [
    (
        (X.float(), WEIGHTS, ENDS, SCALE_X, SCALE),
        r"x is float32, expected float8_e4m3fn or int8\n  .*quantize_per_token",
    ),
    ((X, WEIGHTS.view(torch.int8), ENDS, SCALE_X, SCALE), r"x is float8_e4m3fn but weights is int8\n  quantise both"),
    ((X, WEIGHTS[0], ENDS, SCALE_X, SCALE), r"weights has shape 24x64\n  expected \[experts, n, k\]"),
    ((X[:, :32], WEIGHTS, ENDS, SCALE_X, SCALE), r"x has shape 6x32 but weights are 3x24x64\n  expected \[m, 64\]"),
    ((X, WEIGHTS, ENDS[:3], SCALE_X, SCALE), "offsets has shape 3 but there are 3 experts"),
    ((X, WEIGHTS, ENDS.float(), SCALE_X, SCALE), "offsets is float32"),
    ((X, WEIGHTS, ENDS, SCALE_X.half(), SCALE), "scale_x is float16, expected float32"),
    ((X, WEIGHTS, ENDS, SCALE_X[:5], SCALE), r"scale_x has shape 5x1\n  expected one a row of x: \[6, 1\]"),
    ((X, WEIGHTS, ENDS, SCALE_X, SCALE[0]), r"scale_weights has shape 24x1\n  .* weight: \[3, 24, 1\]"),
    ((X, WEIGHTS, ENDS, SCALE_X, SCALE, "float64"), "out_dtype"),
    ((LONG[0], LONG, ENDS[:2], SCALE_X[:1], SCALE[:1, :1]), "k=131072 products of int8 may not fit in int32"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_call_is_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{OP.name}: .*{message}"):
        registry.call(OP.name, *given)

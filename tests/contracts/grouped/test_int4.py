"""Products of rows grouped by expert with weights of 4 bits: mutants, calls, and calls that are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry import PackedExperts
from registry.contract import as_tuple
from registry.contracts import GROUPED_GEMM_INT4 as OP
from registry.correctness import numerics
from registry.errors import ArgumentTypeError, InvalidArgumentError
from registry.problem import Problem

from .cases import case, refused

Tensor = torch.Tensor
SHAPES: tuple[tuple[int, int, str, str, str], ...] = (
    (70, 6, "uniform", "integer", "bfloat16"),
    (33, 9, "skewed", "float", "float16"),
    (9, 5, "skewed", "none", "float32"),
)


@cache
def problems() -> list[Problem]:
    return [
        OP.problem_of({
            "m": m, "n": 24, "k": 96, "group_size": 32, "experts": experts, "routing": routing, "zeros": zeros,
            "dtype": dtype,
        })
        for m, experts, routing, zeros, dtype in SHAPES
    ]  # fmt: skip


def rolled(name: str, dim: int) -> Callable[[dict[str, Any]], Any]:
    return lambda named: None if named[name] is None else named[name].roll(1, dim)


def last_left_out(named: dict[str, Any]) -> Tensor:
    x: Tensor = named["x"].clone()
    x[:, -1] = 0
    return x


def moved(named: dict[str, Any]) -> Tensor:
    offsets: Tensor = named["offsets"].clone()
    offsets[1:-1] += 1
    return offsets


def all_rows(named: dict[str, Any]) -> Tensor:
    offsets: Tensor = named["offsets"].clone()
    offsets[0], offsets[-1] = 0, named["x"].shape[0]
    return offsets


MUTANTS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    "words of the next expert": {"qweight": rolled("qweight", 0)},
    "scales of the next expert": {"scales": rolled("scales", 0)},
    "scales of the next group": {"scales": rolled("scales", 1)},
    "scales of the next column": {"scales": rolled("scales", 2)},
    "zero points of the next expert": {"zeros": rolled("zeros", 0)},
    "zero points of the next group": {"zeros": rolled("zeros", 1)},
    "last of K left out": {"x": last_left_out},
    "row boundary one late": {"offsets": moved},
    "rows of nobody computed": {"offsets": all_rows},
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few(5)
def test_a_mutant_is_refused_by_some_kind(mutant: str) -> None:
    for problem in problems():
        if "zero points" not in mutant or problem.zeros != "none":
            assert refused(OP, problem, **MUTANTS[mutant]), problem


def test_a_weight_rounded_before_the_product_is_right() -> None:
    for problem in problems():
        for kind in OP.kinds:
            values, reference, own = case(OP, problem, kind)
            x, qweight, scales, zeros, bits, group_size, k, offsets = values
            dense = PackedExperts(qweight, scales, zeros, bits, group_size, (problem.n, k)).dequantize()
            y = registry.call("grouped_gemm", x, dense, offsets)
            assert numerics.compare(OP, problem, as_tuple(y), reference, own, values).message == ""


EXPERTS = PackedExperts.stack([registry.quantize(torch.randn(24, 64).bfloat16(), group_size=32) for _ in range(3)])
X, ENDS = torch.randn(6, 64).bfloat16(), torch.tensor([1, 3, 3, 5])


def test_a_call_multiplies_by_each_experts_weight() -> None:
    exact = torch.zeros(6, 24, dtype=torch.float64)
    exact[1:3] = X[1:3].double() @ EXPERTS[0].dequantize().double().T
    exact[3:5] = X[3:5].double() @ EXPERTS[2].dequantize().double().T
    for y in (registry.call(OP.name, X, EXPERTS, ENDS), registry.call(OP.name, X, offsets=ENDS, weights=EXPERTS)):
        assert isinstance(y, Tensor)
        torch.testing.assert_close(y.double(), exact, rtol=0.02, atol=0.1)
        assert y[[0, 5]].eq(0).all()
    assert registry.call(OP.name, X[:0], EXPERTS, ENDS * 0).shape == (0, 24)


def test_a_gradient_goes_through_the_frozen_weights() -> None:
    x, experts = X.float().requires_grad_(), EXPERTS.to(dtype=torch.float32)
    registry.call(OP.name, x, experts, ENDS).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[[1, 2]], experts[0].dequantize().sum(0).expand(2, 64))
    torch.testing.assert_close(x.grad[[3, 4]], experts[2].dequantize().sum(0).expand(2, 64))
    assert x.grad[[0, 5]].eq(0).all()


def test_a_wrong_gradient_is_refused() -> None:
    weights = (EXPERTS.qweight, EXPERTS.scales, EXPERTS.zeros, ENDS, 4, 32, 64)
    with pytest.raises(
        InvalidArgumentError, match=r"grad_y has shape 6x64 but weights have N=24\n  expected \[m, 24\]"
    ):
        registry.call("grouped_gemm_int4_backward", X, *weights)


EIGHT = PackedExperts.stack([registry.quantize(torch.randn(24, 64).bfloat16(), group_size=32, bits=8)])
WRONG = [
    ((X, EXPERTS[0], ENDS), ArgumentTypeError, r"weights is a PackedWeight, expected PackedExperts\n.*stack"),
    ((X, EXPERTS), ArgumentTypeError, "missing offsets"),
    ((X, EIGHT, ENDS[:2]), InvalidArgumentError, r"weights of 8 bits\n  expected 4"),
    ((X, EXPERTS, ENDS[:3]), InvalidArgumentError, "offsets has shape 3 but there are 3 experts"),
    ((X, EXPERTS, ENDS.float()), InvalidArgumentError, "offsets is float32"),
    ((X[:, :32], EXPERTS, ENDS), InvalidArgumentError, "x has shape 6x32 but weights have K=64"),
    ((X[0], EXPERTS, ENDS), InvalidArgumentError, "x has shape 64 but"),
    ((X.float(), EXPERTS, ENDS), InvalidArgumentError, "x is float32 but the scales are bfloat16"),
    ((X.double(), EXPERTS, ENDS), InvalidArgumentError, "x is float64"),
]


@pytest.mark.parametrize(("given", "kind", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_call_is_refused(given: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"{OP.name}: {message}"):
        registry.call(OP.name, *given)


@pytest.mark.parametrize(("rows", "first"), [(0, 0), (4, 2)])
def test_rows_of_no_expert_have_a_gradient_of_zeros(rows: int, first: int) -> None:
    weights = PackedExperts.stack([registry.quantize(torch.randn(16, 32), group_size=32) for _ in range(3)])
    x, offsets = torch.randn(rows, 32, requires_grad=True), torch.full((4,), first)
    canonical = OP.bind((x, weights, offsets), {})
    for y in (OP.reference(*canonical), registry.call("grouped_gemm_int4", x, weights, offsets)):
        (gradient,) = torch.autograd.grad(as_tuple(y)[0].sum(), x)
        assert torch.equal(gradient, torch.zeros(rows, 32))

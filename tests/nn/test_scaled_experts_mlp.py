"""ScaledExpertsMlp: the experts' MLPs in float8 and int8, against each expert's dequantised weights in float64."""

from __future__ import annotations

import copy

import pytest
import torch

from registry import InvalidArgumentError
from registry.nn import ScaledExperts, ScaledExpertsMlp

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

EXPERTS, HIDDEN, INNER = 3, 64, 32
DTYPES = ("float8_e4m3fn", "int8")
X = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
INDEX = torch.tensor([[0, 2], [2, 1], [1, 3], [2, 0], [3, 3]])  # 3 is no expert
WEIGHTS = torch.rand(5, 2, generator=torch.Generator().manual_seed(3)).bfloat16()


def drawn(n: int, k: int, seed: int) -> torch.Tensor:
    weights = torch.randn(EXPERTS, n, k, generator=torch.Generator().manual_seed(seed)) / k**0.5
    return weights.bfloat16()


def mlp(dtype: str = "float8_e4m3fn", seed: int = 0) -> ScaledExpertsMlp:
    gate_up, down = drawn(2 * INNER, HIDDEN, seed), drawn(HIDDEN, INNER, seed + 1)
    return ScaledExpertsMlp(
        ScaledExperts.rounded(gate_up, dtype), ScaledExperts.rounded(down, dtype), torch.nn.SiLU()
    ).eval()


def exact(module: ScaledExpertsMlp, x: torch.Tensor) -> torch.Tensor:
    gate_up, down = module.gate_up.dequantize(torch.float64), module.down.dequantize(torch.float64)
    y = torch.zeros(5, HIDDEN, dtype=torch.float64)
    for token, (row, weights) in enumerate(zip(INDEX.tolist(), WEIGHTS.double(), strict=True)):
        for expert, weight in zip(row, weights, strict=True):
            if expert < EXPERTS:
                gate, up = (gate_up[expert] @ x[token].double()).chunk(2)
                y[token] = y[token] + weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    return y


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_gets_the_weighted_sum_of_its_experts(dtype: str) -> None:
    module = mlp(dtype)
    dense = drawn(2 * INNER, HIDDEN, 0)
    assert rms(module.gate_up.dequantize(torch.float64) - dense) < 0.03 * rms(dense)
    y = module(X, INDEX, WEIGHTS)
    assert y.dtype == torch.bfloat16
    expected = exact(module, X)
    assert rms(y.double() - expected) < (0.06 if dtype == "float8_e4m3fn" else 0.02) * rms(expected)
    assert y[4].eq(0).all()
    assert module(X[:0], INDEX[:0], WEIGHTS[:0]).shape == (0, HIDDEN)


def test_tokens_of_a_dtype_that_is_not_rounded_are_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="x is float64, expected float32, float16 or bfloat16"):
        mlp()(X.double(), INDEX, WEIGHTS)


def test_it_is_compiled_in_one_graph_and_gradients_pass_the_frozen_weights() -> None:
    module = mlp()
    x = X.clone().requires_grad_()
    module(x, INDEX, WEIGHTS).double().square().sum().backward()
    wide = X.double().requires_grad_()
    exact(module, wide).square().sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0.1, atol=0.1)
    weights = WEIGHTS.clone().requires_grad_()
    module(X, INDEX, weights).sum().backward()
    assert weights.grad is not None, "the router learns"
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, INDEX, WEIGHTS), module(X, INDEX, WEIGHTS))
        with torch.autocast("cpu", torch.bfloat16):
            assert module(X.float(), INDEX, WEIGHTS.float()).dtype == torch.float32


def test_its_state_is_plain_tensors_and_conversions_and_copies_keep_the_levels() -> None:
    module, other = mlp(), mlp(seed=4)
    assert set(module.state_dict()) == {
        f"{name}_{part}" for name in ("gate_up", "down") for part in ("levels", "scales")
    }
    other.load_state_dict(module.state_dict())
    for each in (other, copy.deepcopy(module)):
        assert torch.equal(each(X, INDEX, WEIGHTS), module(X, INDEX, WEIGHTS))
    half = copy.deepcopy(module).to(torch.float16)
    assert (half.down_levels.dtype, half.down_scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    y, expected = half(X.half(), INDEX, WEIGHTS.half()), exact(module, X)
    assert y.dtype == torch.float16
    assert rms(y.double() - expected) < 0.06 * rms(expected)
    assert repr(module).startswith(
        "ScaledExpertsMlp(\n  num_experts=3, gate_up=(64, 64), down=(64, 32), float8_e4m3fn\n"
    )


def test_what_makes_no_experts_is_refused() -> None:
    down, levels = ScaledExperts.rounded(drawn(HIDDEN, INNER, 0)), torch.zeros(2, 4, 8, dtype=torch.int8)
    for gate_up in (
        ScaledExperts.rounded(drawn(HIDDEN, HIDDEN, 0)[:2]),
        ScaledExperts.rounded(drawn(2 * INNER, HIDDEN, 0), "int8"),
        down,
    ):
        with pytest.raises(InvalidArgumentError, match=r"ScaledExpertsMlp: .*, 3 down of .*\n  expected as many"):
            ScaledExpertsMlp(gate_up, down, torch.nn.SiLU())
    for given, message in (
        ((levels[0], torch.ones(4, 1)), r"levels is int8 of shape \(4, 8\)"),
        ((levels.float(), torch.ones(2, 4, 1)), "levels is float32"),
        ((levels, torch.ones(2, 4)), r"scales is float32 of shape \(2, 4\)\n  expected float32 of shape \(2, 4, 1\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"ScaledExperts: {message}"):
            ScaledExperts(*given)
    with pytest.raises(InvalidArgumentError, match="ScaledExperts: the weight holds NaN or infinity"):
        ScaledExperts.rounded(drawn(4, 8, 0) / 0)

"""ScaledLinear: a linear layer in float8 or int8, its state, conversions and gradients."""

from __future__ import annotations

import copy

import pytest
import torch

from registry import InvalidArgumentError
from registry.nn import ScaledLinear

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

FORMATS = {"float8_e4m3fn": 2**-4, "int8": 1 / 127}
"""The greatest error of a rounded number: relative to itself, and to its row's largest."""


def linear(bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 48, bias).bfloat16()


X = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_it_computes_about_what_the_linear_layer_does(dtype: str, bias: bool) -> None:
    layer = linear(bias)
    scaled = ScaledLinear.from_linear(layer, dtype)
    assert scaled.bias is layer.bias
    weight = layer.weight.detach().double()
    error = (scaled.dequantize(torch.float64) - weight).abs()
    most = weight.abs().amax(1, keepdim=True)
    assert (error <= FORMATS[dtype] * (weight.abs() + most / 64 if "float8" in dtype else most)).all()
    with torch.no_grad():
        y, expected = scaled(X), torch.nn.functional.linear(X.double(), weight)
        expected = expected if layer.bias is None else expected + layer.bias.double()
    assert y.dtype == torch.bfloat16
    assert rms(y.double() - expected) < 0.06 * rms(expected)
    exact = X.double() @ scaled.dequantize(torch.float64).T
    exact = exact if layer.bias is None else exact + layer.bias.detach().double()
    assert rms(y.double() - exact) < 0.04 * rms(expected)


def test_conversions_and_copies_keep_the_levels() -> None:
    scaled = ScaledLinear.from_linear(linear())
    half = copy.deepcopy(scaled).to(torch.float16)
    assert (half.levels.dtype, half.scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert torch.equal(half.levels.float(), scaled.levels.float())
    assert half.bias is not None
    assert half.bias.dtype == torch.float16
    other = ScaledLinear.from_linear(torch.nn.Linear(64, 48).bfloat16())
    other.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        assert half(X.half()).dtype == torch.float16
        assert torch.equal(other(X), scaled(X))
        assert scaled.to("meta")(X.to("meta")).shape == (2, 3, 48)
    assert "float8_e4m3fn" in repr(scaled)


def test_a_gradient_goes_through_the_frozen_weight_and_inference_is_compiled() -> None:
    scaled = ScaledLinear.from_linear(linear())
    x = X.clone().requires_grad_()
    scaled(x).sum().backward()
    assert x.grad is not None
    expected = scaled.dequantize(torch.float64).sum(0).expand(2, 3, 64)
    torch.testing.assert_close(x.grad.double(), expected, rtol=0.02, atol=0.02)
    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), scaled(X))
        with torch.autocast("cpu", torch.bfloat16):
            assert scaled(X.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_a_bias_that_learns_gets_its_gradient_beside_rounded_activations(dtype: str) -> None:
    scaled = ScaledLinear.from_linear(linear(), dtype)
    with torch.no_grad():
        expected = scaled(X)
    y = scaled(X)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert scaled.bias is not None
    assert scaled.bias.grad is not None
    assert (scaled.bias.grad == 6).all()


@pytest.mark.parametrize("bias", [False, True])
def test_a_symbolic_trace_goes_through_it(bias: bool) -> None:
    model = torch.nn.Sequential(ScaledLinear.from_linear(linear(bias)), torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        assert torch.equal(traced(X), model(X))
        assert torch.equal(traced(X.half()), model(X.half()))
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    traced(x).sum().backward()
    model(y).sum().backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


def test_what_makes_no_layer_is_refused() -> None:
    levels, scales = torch.zeros(4, 8, dtype=torch.int8), torch.ones(4, 1)
    for given, message in (
        ((levels.float(), scales), "levels is float32"),
        ((levels, scales[:3]), r"scales is float32 of shape \(3, 1\)\n  expected float32 of shape \(4, 1\)"),
        ((levels, scales.half()), "scales is float16"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"ScaledLinear: {message}"):
            ScaledLinear(*given)
    with pytest.raises(InvalidArgumentError, match="dtype='fp4'"):
        ScaledLinear.from_linear(linear(), "fp4")
    broken = linear()
    broken.weight.data[0, 0] = torch.inf
    with pytest.raises(InvalidArgumentError, match="NaN or infinity"):
        ScaledLinear.from_linear(broken)

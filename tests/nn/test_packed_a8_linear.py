"""PackedA8Linear: W4A8 and W8A8, dynamic and static scales, state, conversions, gradients and refusals."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import pytest
import torch

import registry
from registry import InvalidArgumentError, quantize
from registry.nn import PackedA8Linear, PackedLinear

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

MOST = {"int8": 127.0, "float8_e4m3fn": 448.0}
X = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(1)).bfloat16()


def linear(bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(128, 48, bias).to(dtype)


def rounded(x: torch.Tensor, activations: str, scale: torch.Tensor | None) -> torch.Tensor:
    levels, scales = registry.ops()["quantize_per_token"].reference(x, activations, 0, scale)
    found: torch.Tensor = levels.double() * scales.double()
    return found


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("activations", MOST)
@pytest.mark.parametrize("bits", [4, 8])
def test_it_multiplies_the_rounded_activations_by_the_dequantized_weight(
    bits: int, activations: str, static: bool
) -> None:
    scale = torch.tensor([2.0 / MOST[activations]]) if static else None
    layer = PackedA8Linear.from_linear(
        linear(), bits, group_size=32, symmetric=bits == 8, activations=activations, activation_scale=scale
    )
    with torch.no_grad():
        y = layer(X)
    assert layer.bias is not None
    expected = rounded(X, activations, scale) @ layer.weight.dequantize().double().T + layer.bias.double()
    assert (y.dtype, y.shape) == (torch.bfloat16, (2, 3, 48))
    torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=2e-2)
    if static:
        # activations beyond it saturate: what whole ones give is another result
        whole = X.double() @ layer.weight.dequantize().double().T + layer.bias.double()
        assert (y.double() - whole).abs().max() > 0.1


@pytest.mark.parametrize("static", [False, True])
def test_its_state_copies_and_conversions_keep_the_numbers(static: bool) -> None:
    scale = torch.tensor(0.03) if static else None
    layer = PackedA8Linear(quantize(linear().weight, group_size=64), None, "int8", scale)
    assert ("activation_scale" in layer.state_dict()) is static
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(layer)
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(torch.load(file, weights_only=True))
    half = copy.deepcopy(layer).to(torch.float16)
    with torch.no_grad():
        expected = layer(X)
        assert torch.equal(other(X), expected)
        torch.testing.assert_close(half(X.half()).float(), expected.float(), rtol=2e-2, atol=2e-2)
        assert layer.to("meta")(X.to("meta")).shape == (2, 3, 48)
    assert half.scales.dtype == torch.float16
    if static:
        assert half.activation_scale is not None
        assert (half.activation_scale.dtype, half.activation_scale.shape) == (torch.float32, (1,))


def test_a_gradient_passes_by_whole_activations() -> None:
    layer = PackedA8Linear.from_linear(linear(), group_size=32)
    x = X.clone().requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert torch.equal(y, PackedLinear(layer.weight, layer.bias)(x))
    expected = layer.weight.dequantize().double().sum(0).expand(2, 3, 128)
    torch.testing.assert_close(x.grad.double(), expected, rtol=2e-2, atol=2e-2)  # type: ignore[union-attr]


@pytest.mark.parametrize("activations", MOST)
def test_a_bias_that_learns_gets_its_gradient_beside_rounded_activations(activations: str) -> None:
    layer = PackedA8Linear.from_linear(linear(), group_size=32, activations=activations)
    with torch.no_grad():
        expected = layer(X)
    y = layer(X)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert layer.bias is not None
    assert torch.equal(layer.bias.grad, torch.full((48,), 6.0).bfloat16())  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [False, True])
def test_a_symbolic_trace_goes_through_it(bias: bool) -> None:
    model = torch.nn.Sequential(PackedA8Linear.from_linear(linear(bias), group_size=32), torch.nn.ReLU())
    with torch.no_grad():
        traced = torch.fx.symbolic_trace(model)
        assert torch.equal(traced(X), model(X))


def test_it_is_compiled_whole_and_follows_autocast() -> None:
    layer = PackedA8Linear.from_linear(linear(), group_size=32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), layer(X))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layer(X.float()), layer(X))
        with pytest.raises(InvalidArgumentError, match="x is float32 but the scales of the weight are bfloat16"):
            layer(X.float())
    assert "bits=4, group_size=32, asymmetric, activations=int8 dynamic" in repr(layer)


def test_what_makes_no_layer_is_refused() -> None:
    weight = quantize(linear().weight, group_size=32)
    order = torch.arange(128, dtype=torch.int32).flip(0) // 32
    cases: list[tuple[Any, str]] = [
        ((weight, None, "int4"), "activations='int4'\n  expected int8 or float8_e4m3fn"),
        ((quantize(linear().weight, 2, 32),), "a weight with 2 bits"),
        ((quantize(linear().weight, codebook="nf4"),), "a weight with nf4"),
        ((replace(weight, g_idx=order),), "a weight with act-order"),
        ((weight, None, "int8", torch.ones(2)), r"activation_scale is float32 of shape \(2,\)"),
        ((weight, None, "int8", torch.ones(1).half()), "activation_scale is float16"),
        ((weight, None, "int8", 0.5), "activation_scale is 0.5"),
        ((weight, None, "int8", torch.zeros(1)), "activation_scale is 0.0, expected a positive number"),
    ]
    for given, message in cases:
        with pytest.raises(InvalidArgumentError, match=f"PackedA8Linear: {message}"):
            PackedA8Linear(*given)
    with pytest.raises(InvalidArgumentError, match="got a ReLU"):
        PackedA8Linear.from_linear(torch.nn.ReLU())  # type: ignore[arg-type]

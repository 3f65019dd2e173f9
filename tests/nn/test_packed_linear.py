"""PackedLinear: what a model, its state and its conversions see of a packed weight."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

import registry
from registry import InvalidArgumentError, PackedWeight, quantize
from registry.nn import PackedLinear

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")


@pytest.fixture(autouse=True)
def plain_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a user's database says, the reference runs."""
    monkeypatch.setattr("registry.nn.packed_linear.call", reference)


def reference(op: str, *args: Any) -> Any:
    contract = registry.ops()[op]
    return contract.reference(*contract.bind(args, {}))


def linear(n: int = 24, k: int = 256, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(k, n, bias).to(dtype)


def float_zeros(dtype: torch.dtype = torch.float16) -> PackedWeight:
    weight = quantize(linear(dtype=dtype).weight)
    assert weight.zeros is not None
    return replace(weight, zeros=weight.zeros.float() + 0.3)


X = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_it_computes_what_a_linear_of_the_dequantized_weight_computes(bias: bool, symmetric: bool) -> None:
    layer = linear(bias=bias)
    packed = PackedLinear.from_linear(layer, group_size=64, symmetric=symmetric)
    assert packed.bias is layer.bias
    x = X.bfloat16().reshape(1, 3, 256)
    expected = torch.nn.functional.linear(x.double(), packed.weight.dequantize().double())
    expected = expected if layer.bias is None else expected + layer.bias.double()
    torch.testing.assert_close(packed(x).double(), expected, rtol=2e-2, atol=2e-2)


def test_activations_are_converted_under_autocast_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.nn.packed_linear.call", registry.call)
    packed = PackedLinear.from_linear(linear(), group_size=64)
    expected = packed(X.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(packed(X), expected)
    with pytest.raises(InvalidArgumentError, match="a is float32"):
        packed(X)


def test_it_runs_by_the_registry_also_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.nn.packed_linear.call", registry.call)
    packed = PackedLinear.from_linear(linear(), group_size=64).requires_grad_(False)
    x = X.bfloat16()
    expected = x.double() @ packed.weight.dequantize().double().T + torch.as_tensor(packed.bias).double()
    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    for module in (packed, compiled):
        torch.testing.assert_close(module(x).double(), expected, rtol=2e-2, atol=2e-2)
    packed.qweight = torch.zeros_like(packed.qweight)
    assert torch.equal(compiled(x), packed(x))


@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.bfloat16), (4, torch.float32), (8, torch.bfloat16)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_symbolic_trace_goes_through_it(
    bits: int, dtype: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.nn.packed_linear.call", registry.call)
    packed = PackedLinear.from_linear(linear(bias=bias, dtype=dtype), bits=bits, group_size=64)
    model = torch.nn.Sequential(packed, torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    for x in (X.to(dtype), X.to(dtype).reshape(1, 3, 256)):
        assert torch.equal(traced(x), model(x))


def test_the_op_is_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def call(*args: Any) -> torch.Tensor:
        asked.append(args)
        return X[:, :24]

    monkeypatch.setattr("registry.nn.packed_linear.call", call)
    layer = linear()
    for bits, codebook in ((1, None), (2, None), (4, None), (8, None), (4, "nf4")):
        PackedLinear.from_linear(layer, bits, codebook=codebook).forward(X)
    assert [args[0] for args in asked] == ["gemm_int1", "gemm_int2", "gemm_int4", "gemm_int8", "gemm_nf4"]
    assert [args[-1] is layer.bias for args in asked] == [True, True, False, True, True]


UNUSUAL = ["float zeros", "act-order", "groups of 16", "groups of 256", "short last group", "float32"]


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("bias", [False, True])
def test_4_bits_that_gemm_int4_does_not_take_are_multiplied_and_have_a_gradient(
    kind: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.nn.packed_linear.call", registry.call)
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    layer = linear(k=200 if kind == "short last group" else 512, bias=bias, dtype=dtype)
    size = {"groups of 16": 16, "groups of 256": 256}.get(kind, 64)
    weight = quantize(layer.weight, group_size=size)
    assert weight.zeros is not None
    if kind == "float zeros":
        weight = replace(weight, zeros=weight.zeros.float() + 0.3)
    elif kind == "act-order":
        weight = replace(weight, g_idx=torch.arange(512, dtype=torch.int32).flip(0) // 64)
    packed = PackedLinear(weight, layer.bias)
    x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(2)).to(dtype).requires_grad_()
    y, exact = packed(x), weight.dequantize().double()
    expected = x.double() @ exact.T + (0 if layer.bias is None else layer.bias.double())
    close = {"rtol": 1e-5, "atol": 1e-5} if kind == "float32" else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(y.double(), expected, **close)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.sum(0).expand_as(x), **close)
    if layer.bias is not None:
        assert layer.bias.grad is not None
        assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, 3.0))


@pytest.mark.parametrize("kind", ["asymmetric", "symmetric", "float zeros", "act-order", "nf4"])
def test_its_state_is_plain_tensors_and_comes_back(kind: str) -> None:
    base = quantize(linear(dtype=torch.float16).weight, symmetric=kind == "symmetric")
    order = torch.arange(256, dtype=torch.int32).flip(0) // 128
    weight = {
        "float zeros": float_zeros(),
        "act-order": replace(base, g_idx=order),
        "nf4": quantize(linear(dtype=torch.float16).weight, codebook="nf4"),
    }.get(kind, base)
    packed = PackedLinear(weight, torch.ones(24, dtype=torch.float16))
    state = packed.state_dict()
    parts = {name: getattr(weight, name) for name in ("qweight", "scales", "zeros", "g_idx")}
    assert state.keys() == {"bias", *(name for name, value in parts.items() if value is not None)}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other = copy.deepcopy(packed)
    for buffer in other.buffers():
        if buffer is not other.g_idx:
            buffer.zero_()
    assert not other.weight.dequantize().any()
    other.load_state_dict(torch.load(file, weights_only=True))
    for again in (other, copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert torch.equal(again.weight.dequantize(), weight.dequantize())
        assert again.weight.layout == weight.layout
        assert again.weight.qweight is again.qweight


def test_a_conversion_converts_scales_and_integer_zero_points_only() -> None:
    packed = PackedLinear.from_linear(linear(dtype=torch.float32))
    words = packed.qweight
    packed.to(torch.bfloat16)
    assert (packed.scales.dtype, packed.weight.zeros.dtype) == (torch.bfloat16, torch.bfloat16)  # type: ignore[union-attr]
    assert packed.bias is not None
    assert packed.bias.dtype == torch.bfloat16
    assert packed.qweight is words
    wide = PackedLinear(float_zeros())
    zeros = wide.zeros
    assert zeros is not None
    for convert in (wide.bfloat16, wide.float, wide.half, lambda: wide.to("cpu", torch.bfloat16)):
        convert()
        assert wide.zeros is not None
        assert torch.equal(wide.zeros, zeros)
        assert wide.weight.scales is wide.scales
    assert wide.scales.dtype == torch.bfloat16
    meta = PackedLinear(float_zeros()).to("meta").to(torch.bfloat16)
    assert meta.weight.device.type == "meta"
    assert meta.zeros is not None
    assert meta.zeros.dtype == torch.float32
    empty = meta.to_empty(device="cpu")
    empty.load_state_dict(PackedLinear(float_zeros(torch.bfloat16)).state_dict())
    assert torch.equal(torch.as_tensor(empty.zeros), float_zeros(torch.bfloat16).zeros)  # type: ignore[arg-type]


def test_a_state_that_makes_no_weight_is_refused() -> None:
    base = quantize(linear().weight)
    order = torch.arange(256, dtype=torch.int32) // 128
    packed = PackedLinear(replace(base, g_idx=order.flip(0)))
    state = packed.state_dict()
    for change, message in (
        ({"g_idx": order * 7}, "g_idx has groups 0 to 7"),
        ({"g_idx": order * 0}, "256 elements in group 0"),
        ({"qweight": state["qweight"].float()}, "qweight is torch.float32"),
        ({"scales": state["scales"][:1]}, "size mismatch"),
    ):
        with pytest.raises(RuntimeError, match=message):
            copy.deepcopy(packed).load_state_dict({**state, **change})


def test_zero_points_that_are_loaded_in_float32_stay_as_they_are() -> None:
    packed = PackedLinear(quantize(linear(dtype=torch.float16).weight))
    packed.load_state_dict(PackedLinear(float_zeros()).state_dict())
    assert torch.equal(torch.as_tensor(packed.zeros), torch.as_tensor(float_zeros().zeros))


def test_loading_tells_what_was_prepared_of_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("registry.nn.packed_linear.weights_changed", told.append)
    model = torch.nn.Sequential(PackedLinear.from_linear(linear()), torch.nn.ReLU())
    model.load_state_dict(model.state_dict())
    assert [weight.qweight for weight in told] == [model[0].qweight]


def test_other_tensors_in_its_place_are_seen() -> None:
    packed = PackedLinear.from_linear(linear())
    x = X.bfloat16()
    other = {name: torch.zeros_like(value) for name, value in packed.state_dict().items()}
    y = packed(x)
    assert not torch.func.functional_call(packed, other, (x,)).any()
    assert torch.equal(packed(x), y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PackedLinear(torch.ones(2, 2)), "weight is a Tensor, expected a PackedWeight"),  # type: ignore[arg-type]
        (lambda: PackedLinear(float_zeros(), torch.ones(3)), r"bias is \(3,\)\n  expected shape \(24,\)"),
        (lambda: PackedLinear(float_zeros(), torch.ones(24)), "bias is torch.float32 on cpu, weight torch.float16"),
        (lambda: PackedLinear.from_linear(torch.nn.ReLU()), "got a ReLU"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_layer_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_it_tells_its_sizes() -> None:
    packed = PackedLinear.from_linear(linear(bias=False).eval(), codebook="nf4", group_size=64)
    assert repr(packed) == "PackedLinear(in_features=256, out_features=24, bias=False, bits=4, group_size=64, nf4)"
    assert not packed.training


@pytest.mark.parametrize("saved", [False, True])
def test_a_state_of_other_levels_is_refused(saved: bool) -> None:
    dense = torch.nn.Linear(128, 8)
    layers = {levels: PackedLinear.from_linear(dense, 4, 64, True, levels or None) for levels in ("", "nf4")}
    models = {levels: torch.nn.Sequential(layer) for levels, layer in layers.items()}
    state, own = models[""].state_dict(), layers["nf4"].qweight.clone()
    if saved:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    with pytest.raises(RuntimeError, match=r"0\.qweight has words of int4, expected nf4"):
        models["nf4"].load_state_dict(state)
    assert torch.equal(layers["nf4"].qweight, own)
    copy.deepcopy(models[""]).load_state_dict(state)
    # what no file has kept is not known
    models["nf4"].load_state_dict(dict(state))

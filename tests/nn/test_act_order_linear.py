"""ActOrderLinear: a weight with act-order, run by the ops for weights without."""

from __future__ import annotations

import copy

import pytest
import torch

from registry import InvalidArgumentError, PackedWeight, quantize
from registry.nn import ActOrderLinear, PackedLinear

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")


def shuffled(bits: int = 4, k: int = 128, size: int = 32) -> PackedWeight:
    weight = quantize(torch.randn(24, k, generator=torch.Generator().manual_seed(0)).bfloat16(), bits, size)
    groups = (torch.arange(k) // size)[torch.randperm(k, generator=torch.Generator().manual_seed(1))]
    return PackedWeight(
        weight.qweight, weight.scales, weight.zeros, bits, size, weight.shape, g_idx=groups.to(torch.int32)
    )


X = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(2)).bfloat16()


@pytest.mark.parametrize("bits", [4, 8])
def test_it_multiplies_by_the_weight_and_tells_exactly_it(bits: int) -> None:
    weight, bias = shuffled(bits), torch.randn(24).bfloat16()
    layer = ActOrderLinear.from_weight(weight, bias)
    expected = X.double() @ weight.dequantize().double().T + bias.double()
    # outputs are about 11
    torch.testing.assert_close(layer(X).double(), expected, rtol=0.02, atol=0.2)
    told = layer.weight
    assert all(torch.equal(a, b) for a, b in zip(told.tensors, weight.tensors, strict=True))
    assert layer.held.g_idx is None
    if bits == 8:  # gemm_int8 has act-order itself
        torch.testing.assert_close(layer(X), PackedLinear(weight, bias)(X), rtol=0.02, atol=0.2)


def test_its_state_is_loaded_copied_and_moved() -> None:
    layer, other = (ActOrderLinear.from_weight(shuffled()) for _ in range(2))
    assert set(layer.state_dict()) == {"qweight", "scales", "zeros", "order"}
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(layer.state_dict())
    for each in (other, copy.deepcopy(layer), copy.deepcopy(layer).to("cpu", torch.bfloat16)):
        assert torch.equal(each(X), layer(X))
    assert copy.deepcopy(layer).to("meta").order.is_meta
    assert "act-order" in repr(layer)


@pytest.mark.parametrize("k", [100, 127, 129, 256])
def test_rows_of_another_length_are_refused(k: int) -> None:
    layer = ActOrderLinear.from_weight(shuffled())
    message = rf"x has shape 2x{k} but the weight has K=128\n  expected x of shape \[..., 128\]"
    with pytest.raises(InvalidArgumentError, match=message):
        layer(torch.zeros(2, k, dtype=torch.bfloat16))
    with pytest.raises(InvalidArgumentError, match="x has shape"):
        layer(torch.zeros((), dtype=torch.bfloat16))


def test_a_gradient_is_in_the_activations_own_order() -> None:
    weight = shuffled()
    x = X.clone().requires_grad_()
    ActOrderLinear.from_weight(weight)(x).sum().backward()
    assert x.grad is not None
    expected = weight.dequantize().double().sum(0).expand(2, 3, 128)
    torch.testing.assert_close(x.grad.double(), expected, rtol=0.02, atol=0.1)


def test_what_it_cannot_hold_is_refused() -> None:
    plain = quantize(torch.randn(24, 128).bfloat16(), group_size=32)
    with pytest.raises(InvalidArgumentError, match=r"weight has no g_idx\n.*PackedLinear"):
        ActOrderLinear.from_weight(plain)
    for order in (torch.arange(128), torch.arange(64, dtype=torch.int32)):
        with pytest.raises(InvalidArgumentError, match=r"order is torch\.int.*\n  expected torch\.int32"):
            ActOrderLinear(plain, order)

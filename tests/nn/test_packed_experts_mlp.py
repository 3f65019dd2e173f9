"""PackedExpertsMlp: the experts' MLPs by grouped products, against each expert's dense weights in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry import InvalidArgumentError, PackedExperts, quantize
from registry.nn import PackedExpertsMlp

EXPERTS, HIDDEN, INNER = 3, 64, 32


def experts(n: int, k: int, seed: int, symmetric: bool = False) -> PackedExperts:
    weights = torch.randn(EXPERTS, n, k, generator=torch.Generator().manual_seed(seed)) / k**0.5
    return PackedExperts.stack([quantize(weight.bfloat16(), group_size=32, symmetric=symmetric) for weight in weights])


def mlp(symmetric: bool = False) -> PackedExpertsMlp:
    gate_up, down = experts(2 * INNER, HIDDEN, 0, symmetric), experts(HIDDEN, INNER, 1, symmetric)
    return PackedExpertsMlp(gate_up, down, torch.nn.SiLU())


X = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
INDEX = torch.tensor([[0, 2], [2, 1], [1, 3], [2, 0], [3, 3]])  # 3 is no expert
WEIGHTS = torch.rand(5, 2, generator=torch.Generator().manual_seed(3)).bfloat16()


def exact(module: PackedExpertsMlp, x: torch.Tensor) -> torch.Tensor:
    gate_up, down = module.gate_up.dequantize().double(), module.down.dequantize().double()
    y = torch.zeros(5, HIDDEN, dtype=torch.float64)
    for token, (row, weights) in enumerate(zip(INDEX.tolist(), WEIGHTS.double(), strict=True)):
        for expert, weight in zip(row, weights, strict=True):
            if expert < EXPERTS:
                gate, up = (gate_up[expert] @ x[token].double()).chunk(2)
                y[token] = y[token] + weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    return y


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_token_gets_the_weighted_sum_of_its_experts(symmetric: bool) -> None:
    module = mlp(symmetric)
    y = module(X, INDEX, WEIGHTS)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact(module, X), rtol=0.05, atol=0.03)
    assert y[4].eq(0).all()
    assert module(X[:0], INDEX[:0], WEIGHTS[:0]).shape == (0, HIDDEN)


def test_it_is_compiled_in_one_graph_and_has_gradients() -> None:
    module = mlp()
    x = X.clone().requires_grad_()
    module(x, INDEX, WEIGHTS).double().square().sum().backward()
    wide = X.double().requires_grad_()
    exact(module, wide).square().sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0.1, atol=0.1)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, INDEX, WEIGHTS), module(X, INDEX, WEIGHTS))


def test_its_state_is_plain_tensors_and_it_is_copied_and_converted() -> None:
    module, other = mlp(), mlp()
    names = {f"{weight}_{part}" for weight in ("gate_up", "down") for part in ("qweight", "scales", "zeros")}
    assert set(module.state_dict()) == names
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(module.state_dict())
    for each in (other, copy.deepcopy(module)):
        assert torch.equal(each(X, INDEX, WEIGHTS), module(X, INDEX, WEIGHTS))
    half = copy.deepcopy(module).to(torch.float16)
    torch.testing.assert_close(half(X.half(), INDEX, WEIGHTS.half()).double(), exact(module, X), rtol=0.05, atol=0.03)
    assert "num_experts=3" in repr(module)


def with_float_zeros(given: PackedExperts) -> PackedExperts:
    assert given.zeros is not None
    return replace(given, zeros=given.zeros.float() + 0.3137)


def test_zero_points_that_half_precision_would_round_stay_as_they_are() -> None:
    gate_up, down = (with_float_zeros(experts(*sizes)) for sizes in ((2 * INNER, HIDDEN, 0), (HIDDEN, INNER, 1)))
    module = PackedExpertsMlp(gate_up, down, torch.nn.SiLU())
    for dtype in (torch.bfloat16, torch.float16):
        converted = copy.deepcopy(module).to(dtype)
        assert converted.down.scales.dtype == dtype
        for name in ("gate_up_zeros", "down_zeros"):
            assert torch.equal(converted.get_buffer(name), module.get_buffer(name))
    assert mlp().half().get_buffer("down_zeros").dtype == torch.float16
    other = mlp()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.get_buffer("down_zeros"), module.get_buffer("down_zeros"))
    assert torch.equal(other(X, INDEX, WEIGHTS), module(X, INDEX, WEIGHTS))


@pytest.mark.parametrize("down", [experts(HIDDEN, HIDDEN, 0), experts(HIDDEN, INNER, 0)[0]], ids=["shape", "one"])
def test_weights_that_do_not_fit_are_refused(down: Any) -> None:
    down = down if isinstance(down, PackedExperts) else PackedExperts.stack([down])
    with pytest.raises(InvalidArgumentError, match=r"3 gate_up of .*\n  expected as many"):
        PackedExpertsMlp(experts(2 * INNER, HIDDEN, 0), down, torch.nn.SiLU())

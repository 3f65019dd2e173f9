"""layer_norm: what it is, what it refuses, its gradients, and mutants that its tolerances refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import registry
from registry.contract import Op, as_tuple
from registry.contracts import LAYER_NORM, LAYER_NORM_BACKWARD
from registry.errors import InvalidArgumentError
from registry.problem import Value

from ..accepting import accepted

Tensor = torch.Tensor
Mutant = Callable[..., tuple[Tensor, ...]]
GIVEN = [(True, True), (True, False), (False, True), (False, False)]


def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Row by row in float64, by the sums of the definition."""
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]):
        mean = sum(row) / len(row)
        variance = sum((one - mean) ** 2 for one in row) / len(row)
        unit = (row - mean) / (variance + eps) ** 0.5
        unit = unit if weight is None else unit * weight
        rows.append(unit if bias is None else unit + bias)
    return torch.stack(rows).view(x.shape)


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_values_and_gradients_are_the_formulas(given: tuple[bool, bool]) -> None:
    learnt = [torch.randn(7, requires_grad=True) if one else None for one in given]
    for eps in (1e-5, 0.3):
        x = torch.randn(2, 3, 7, requires_grad=True)
        wanted = [one for one in (x, *learnt) if one is not None]
        y, expected = registry.call("layer_norm", x, *learnt, eps), formula(x, learnt[0], learnt[1], eps)
        torch.testing.assert_close(y, expected.float())
        seed = torch.randn_like(x)
        found = torch.autograd.grad(y, wanted, seed)
        for one, right in zip(found, torch.autograd.grad(expected, wanted, seed.double()), strict=True):
            torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-5)


def test_gradients_pass_gradcheck_in_float64() -> None:
    x, weight, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (5,), (5,)))
    tried: list[Any] = [(x, weight, bias), (x, None, bias), (x,)]
    for values in tried:
        assert torch.autograd.gradcheck(lambda *given: registry.call("layer_norm", *given), values)


def test_a_large_mean_costs_nothing_and_constant_rows_have_no_variance() -> None:
    noise = torch.randn(4, 1001)
    for offset in (1e3, 1e4):
        x = noise + offset
        assert (registry.call("layer_norm", x) - formula(x, None, None, 1e-5)).abs().max() < 8 * offset * 2.0**-24
    bias = torch.randn(1001)
    for level in (0.1, -3.0, 1e4):
        y = registry.call("layer_norm", torch.full((2, 1001), level), None, bias)
        torch.testing.assert_close(y, bias.expand(2, -1), rtol=0, atol=abs(level) * 1e-4)


def test_rows_may_be_none_or_apart_and_dimensions_one() -> None:
    weight, bias = torch.randn(6), torch.randn(6)
    empty = torch.empty(0, 6, requires_grad=True)
    y = registry.call("layer_norm", empty, weight.requires_grad_(), bias.requires_grad_())
    assert y.shape == (0, 6)
    y.sum().backward()
    for one in (weight, bias):
        assert one.grad is not None
        assert one.grad.equal(torch.zeros(6))
    apart = torch.randn(6, 12).t()
    learnt = weight.detach(), bias.detach()
    assert torch.equal(registry.call("layer_norm", apart, *learnt), registry.call("layer_norm", apart.clone(), *learnt))
    x, several = torch.randn(5, 2, 3), [one.view(2, 3) for one in learnt]
    found = registry.call("layer_norm", x.flatten(-2), *(one.flatten() for one in several)).view_as(x)
    torch.testing.assert_close(found, torch.nn.functional.layer_norm(x, (2, 3), several[0], several[1]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_x_takes_a_float32_weight_and_bias(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(3, 65, dtype=dtype), torch.randn(65), torch.randn(65)
    values = [one.requires_grad_() for one in (x, weight, bias)]
    y = registry.call("layer_norm", *values)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), formula(x, weight, bias, 1e-5), rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    y.sum().backward()
    assert [one.grad is not None and one.grad.dtype for one in values] == [dtype, torch.float32, torch.float32]


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_a_gradient_that_nobody_needs_is_empty(needs: tuple[bool, bool, bool]) -> None:
    values = (torch.randn(3, 5), torch.randn(3, 5), torch.randn(5), torch.randn(5), 1e-5)
    whole = as_tuple(LAYER_NORM_BACKWARD.reference(*values))
    told = LAYER_NORM_BACKWARD.output_specs(LAYER_NORM_BACKWARD.arguments((*values, *needs)), torch.device("cpu"))
    for outputs in (
        LAYER_NORM_BACKWARD.reference(*values, *needs),
        registry.call(LAYER_NORM_BACKWARD.name, *values, *needs),
    ):
        for found, spec, needed, right in zip(as_tuple(outputs), told.values(), needs, whole, strict=True):
            assert found.shape == spec.shape == (right.shape if needed else (0,))
            assert not needed or torch.allclose(found, right, atol=1e-6)


def _difference_of_means(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.square().mean(-1, keepdim=True) - mean.square()
    return ((wide - mean) * torch.rsqrt(variance + eps) * weight.float() + bias.float()).to(x.dtype)


def _unbiased(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    variance, mean = torch.var_mean(x.float(), -1, keepdim=True)
    return ((x.float() - mean) * torch.rsqrt(variance + eps) * weight.float() + bias.float()).to(x.dtype)


def _last(y: Tensor) -> Tensor:
    return torch.cat((y[..., :-1], torch.zeros_like(y[..., -1:])), -1)


forward: Callable[..., Any] = LAYER_NORM.reference
backward: Callable[..., Any] = LAYER_NORM_BACKWARD.reference
FORWARD: dict[str, Mutant] = {
    "a difference of two means": lambda *values: (_difference_of_means(*values),),
    "divided by cols - 1": lambda *values: (_unbiased(*values),),
    "eps beside the deviation": lambda x, w, b, eps: (forward(x, w, b, eps**2),),
    "default eps": lambda x, w, b, eps: (forward(x, w, b, 1e-5),),
    "no mean": lambda x, w, b, eps: ((torch.nn.functional.rms_norm(x, w.shape, w, eps) + b).to(x.dtype),),
    "no bias": lambda x, w, b, eps: (forward(x, w, None, eps),),
    "no weight": lambda x, w, b, eps: (forward(x, None, b, eps),),
    "last column left out": lambda *values: (_last(forward(*values)),),
    "another row": lambda *values: (forward(*values).roll(1, 0),),
}


def _without(part: str) -> Mutant:
    """The gradient of the input with a term left out or with a wrong one."""

    def compute(grad_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Any) -> tuple[Tensor, ...]:
        _, grad_weight, grad_bias = backward(grad_y, x, weight, bias, eps)
        wide = x.float()
        inverse = torch.rsqrt(wide.var(-1, keepdim=True, correction=0) + eps)
        unit, g = (wide - wide.mean(-1, keepdim=True)) * inverse, grad_y.float() * weight.float()
        mean = 0.0 if part == "mean" else g.mean(-1, keepdim=True)
        along = 0.0 if part == "projection" else (g * unit).mean(-1, keepdim=True)
        return ((g - mean - unit * along) * inverse).to(x.dtype), grad_weight, grad_bias

    return compute


def _changed(place: int, change: Callable[[Tensor], Tensor]) -> Mutant:
    def compute(*values: Any) -> tuple[Tensor, ...]:
        return tuple(change(one) if at == place else one for at, one in enumerate(backward(*values)))

    return compute


BACKWARD: dict[str, Mutant] = {
    "without mean(g)": _without("mean"),
    "without the projection": _without("projection"),
    **{f"last column of {place} left out": _changed(place, _last) for place in range(3)},
    "half of the rows in grad_bias": lambda *values: (*backward(*values)[:2], values[0][::2].sum(0)),
    "not normalised grad_weight": lambda *values: (
        *(one for place, one in enumerate(backward(*values)) if place == 0),
        (values[0] * values[1]).sum(0),
        backward(*values)[2],
    ),
    "no weight": lambda g, x, w, b, *rest: (backward(g, x, None, b, *rest)[0], *backward(g, x, w, b, *rest)[1:]),
}


@pytest.mark.parametrize(
    ("op", "mutants"), [(LAYER_NORM, FORWARD), (LAYER_NORM_BACKWARD, BACKWARD)], ids=["forward", "backward"]
)
def test_tolerances_accept_the_reference_and_refuse_mutants(op: Op, mutants: dict[str, Mutant]) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        dims: dict[str, Value] = {"rows": 6, "cols": 258, "weight": True, "bias": True, "dtype": dtype}
        assert accepted(op, dims, op.reference)
        for name, mutant in mutants.items():
            # of bfloat16's few levels the squares are exact enough
            if dtype == "bfloat16" and name == "a difference of two means":
                continue
            assert not accepted(op, dims, mutant), (dtype, name)


X, W = torch.ones(4, 6), torch.ones(6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((torch.ones(()),), "x has no dimension to normalise"),
        ((X.int(),), "x is int32, expected float32"),
        ((X, W[:5]), "weight has shape 5 but x has 6 columns"),
        ((X, None, X), "bias has shape 4x6 but x has 6 columns"),
        ((X, W.half()), "x is float32 but weight is float16"),
        ((X.half(), W, W.half()), "weight is float32 but bias is float16"),
        ((X, W, W, -1e-5), "eps=-1e-05"),
        ((X, W, W, float("nan")), "eps=nan"),
    ],
)
def test_what_does_not_fit_is_told(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^layer_norm: {message}"):
        registry.call("layer_norm", *values)
    with pytest.raises(InvalidArgumentError, match=f"^layer_norm_backward: {message}"):
        registry.call("layer_norm_backward", values[0], *values)


def test_a_gradient_of_another_shape_or_dtype_is_told() -> None:
    with pytest.raises(InvalidArgumentError, match="grad_y is 2x6 but x is 4x6"):
        registry.call("layer_norm_backward", X[:2], X, W)
    with pytest.raises(InvalidArgumentError, match="x is float32 but grad_y is float16"):
        registry.call("layer_norm_backward", X.half(), X, W)

"""float64 through ``call``, a half x with a float32 weight, and names of the small dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from registry.contracts import RMS_NORM, fills
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.problem import Problem

from ..serving import serving

gradcheck: Callable[..., bool] = torch.autograd.gradcheck


@pytest.fixture(scope="module")
def dispatcher() -> Iterator[Dispatcher]:
    made = Dispatcher(Catalog())
    with serving(made):
        yield made


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("vector_add", (double(3, 5), double(3, 5, seed=1))),
        ("square", (double(3, 5),)),
        ("gelu", (double(3, 5), "none")),
        ("gelu", (double(3, 5), "tanh")),
        ("softmax", (double(3, 5), 0)),
        ("rms_norm", (double(3, 5), double(5, seed=1), 1e-6)),
        ("linear", (double(2, 3, 5), double(4, 5, seed=1), double(4, seed=2))),
        ("linear", (double(3, 5), double(4, 5, seed=1))),
    ],
)
def test_gradcheck_runs_through_call(dispatcher: Dispatcher, name: str, args: tuple[Any, ...]) -> None:
    assert gradcheck(lambda *values: dispatcher.call(name, *values), args)
    assert dispatcher.call(name, *args).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.few(1)
def test_a_half_x_takes_a_float32_weight_and_keeps_its_dtype(dispatcher: Dispatcher, dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 64, dtype=dtype, requires_grad=True), torch.rand(64, requires_grad=True)
    y = dispatcher.call("rms_norm", x, weight)
    wide = x.detach().double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.detach()
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.dtype, weight.grad.dtype) == (dtype, torch.float32)
    told = dispatcher.explain("rms_norm", x.detach(), weight.detach())
    assert told.implementation == "cpp.rows"
    # torch's own warns that its fused kernel does not take them
    assert [other.name for other in told.others if any("alike" in reason for reason in other.reasons)] == [
        "torch.native",
        "torch.compile",
    ]


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float64, torch.float64),
    ],
    ids=str,
)
@pytest.mark.few(2)
def test_vector_add_promotes_as_torch_does(
    dispatcher: Dispatcher, one: torch.dtype, other: torch.dtype, result: torch.dtype
) -> None:
    x, y = torch.randn(3, 7, dtype=one, requires_grad=True), torch.randn(3, 7, dtype=other, requires_grad=True)
    for left, right in ((x, y), (x.T, y.T)):
        found, expected = dispatcher.call("vector_add", left, right), left + right
        assert (found.dtype, found.stride()) == (result, expected.stride())
        assert torch.equal(found, expected)
    dispatcher.call("vector_add", x, y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert (x.grad.dtype, y.grad.dtype) == (one, other)
    compiled = torch.compile(lambda *pair: dispatcher.call("vector_add", *pair), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x.detach(), y.detach()), x + y)


def test_a_float32_x_takes_no_half_weight() -> None:
    with pytest.raises(ValueError, match="x is float32 but weight is float16"):
        RMS_NORM.pose(RMS_NORM.arguments((torch.ones(2, 4), torch.ones(4, dtype=torch.float16), 1e-6)))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int8", "float64"])
def test_a_problem_knows_the_dtype_and_inputs_of_it_are_drawn(name: str) -> None:
    dtype = Problem("acme::gemm", {"m": 4, "dtype": name}).torch_dtype
    drawn = fills.normal((64, 8), dtype, torch.Generator().manual_seed(0))
    assert drawn.dtype == dtype
    assert len(drawn.float().unique()) > 50

"""Outputs of an op have the strides of its fake also where its reference answers, which may make others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from registry.contract import RowMajor
from registry.contracts import SQUARE
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators

X = torch.randn(3, 4).t()
ROW_MAJOR = RowMajor(lambda x: [(x.shape, x.dtype)])


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[::-1]).permute(*range(x.dim())[::-1])


FAKES: dict[str, tuple[Callable[..., Any] | None, Callable[[torch.Tensor], torch.Tensor]]] = {
    "row-major": (ROW_MAJOR, lambda x: x * x),
    "by columns": (by_columns, lambda x: (x * x).contiguous()),
    "as the reference": (None, lambda x: x * x),
}
STRIDES = {"row-major": (3, 1), "by columns": (1, 4), "as the reference": (1, 4)}


@pytest.fixture(params=FAKES)
def call(dispatcher: Dispatcher, request: pytest.FixtureRequest) -> Any:
    """A function that calls an op without implementations; ``strides`` are those that its fake says."""
    torch._dynamo.reset()
    fake, reference = FAKES[request.param]
    # a name for each: torch keeps the code that it has compiled for an operator
    name = f"acme::lies_{request.param.replace('-', '_').replace(' ', '_')}"
    schema = f"{name}(Tensor x) -> Tensor y"
    op = replace(SQUARE, name=name, schema=schema, reference=reference, fake=fake, backward=None, examples=())
    dispatcher.catalog.define(op)
    operators.define(op)
    return (lambda x: dispatcher.call(name, x)), STRIDES[request.param]


def test_a_plain_call_returns_the_strides_of_the_fake(call: Any) -> None:
    run, strides = call
    for _ in range(3):
        y = run(X)
        assert y.stride() == strides
        assert torch.equal(y, X * X)
    assert run(X[:0]).shape == (0, 3)
    assert run(X.to("meta")).stride() == strides
    with FlopCounterMode(display=False):
        assert run(X).stride() in {strides, X.stride()}


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_program_computes_with_the_elements_that_it_means(call: Any, backend: str) -> None:
    run, strides = call

    @torch.compile(fullgraph=True, backend=backend)
    def program(x: torch.Tensor) -> Any:
        y = run(x)
        return y, y + 1, y.transpose(0, 1)[1]

    for _ in range(3):
        y, more, row = program(X)
        assert y.stride() == strides
        torch.testing.assert_close(more, X * X + 1)
        torch.testing.assert_close(row, (X * X)[:, 1])


def test_gradients_and_traces_in_the_mode_reference(call: Any, dispatcher: Dispatcher) -> None:
    run, strides = call
    dispatcher.configure(mode="reference")
    x = X.clone(memory_format=torch.preserve_format).requires_grad_()
    y = run(x)
    assert y.stride() == strides
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * X)
    assert torch.equal(torch.vmap(run)(X), X * X)

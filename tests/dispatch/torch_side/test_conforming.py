"""Outputs of an op have the strides of its fake also where its reference answers, which may make others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils.flop_counter import FlopCounterMode

from registry.contract import Op, RowMajor
from registry.contracts import SQUARE
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators
from registry.dispatch.torch_side.conforming import conforming_reference

from ...serving import serving

X = torch.randn(3, 4).t()
ROW_MAJOR = RowMajor(lambda x: [(x.shape, x.dtype)])


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[::-1]).permute(*range(x.dim())[::-1])


FAKES: dict[str, tuple[Callable[..., Any] | None, Callable[[torch.Tensor], torch.Tensor]]] = {
    "row-major": (ROW_MAJOR, lambda x: x * x),
    "by columns": (by_columns, lambda x: (x * x).contiguous()),
    "otherwise by columns": (RowMajor(ROW_MAJOR.rule, otherwise=by_columns), lambda x: (x * x).contiguous()),
    "as the reference": (None, lambda x: x * x),
}
STRIDES = {"row-major": (3, 1), "by columns": (1, 4), "otherwise by columns": (1, 4), "as the reference": (1, 4)}


@pytest.fixture(params=FAKES)
def defined(dispatcher: Dispatcher, request: pytest.FixtureRequest) -> tuple[Op, tuple[int, ...]]:
    """An op without implementations, and the strides that its fake says."""
    torch._dynamo.reset()
    fake, reference = FAKES[request.param]
    # a name for each: torch keeps the code that it has compiled for an operator
    name = f"acme::lies_{request.param.replace('-', '_').replace(' ', '_')}"
    schema = f"{name}(Tensor x) -> Tensor y"
    op = replace(SQUARE, name=name, schema=schema, reference=reference, fake=fake, backward=None, examples=())
    dispatcher.catalog.define(op)
    operators.define(op)
    return op, STRIDES[request.param]


@pytest.fixture
def call(dispatcher: Dispatcher, defined: tuple[Op, tuple[int, ...]]) -> Any:
    """A function that calls the op, and the strides that its fake says."""
    op, strides = defined
    return (lambda x: dispatcher.call(op.name, x)), strides


def test_a_plain_call_returns_the_strides_of_the_fake(call: Any) -> None:
    run, strides = call
    for _ in range(3):
        y = run(X)
        assert y.stride() == strides
        assert torch.equal(y, X * X)
    assert run(X[:0]).shape == (0, 3)
    assert run(X.to("meta")).stride() == strides
    with FlopCounterMode(display=False):
        assert run(X).stride() == strides


def test_torchs_operator_returns_the_strides_of_the_fake_beside_a_dispatch_mode(
    defined: tuple[Op, tuple[int, ...]], dispatcher: Dispatcher
) -> None:
    op, strides = defined
    # as FakeTensorMode runs operators on the real values of constants
    with serving(dispatcher), FlopCounterMode(display=False), no_dispatch():
        y = operators.define(op)(X)
    assert y.stride() == strides
    assert torch.equal(y, X * X)


@pytest.mark.usefixtures("shared_headers")
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


def asked(op: Op, *values: Any) -> Callable[..., Any]:
    """A function of an op's values that is the answer by its reference, which has answered these before."""
    run = conforming_reference(op)
    run(*values)
    return run


def test_a_fake_is_not_asked_again_for_calls_alike() -> None:
    told: list[Any] = []

    def fake(x: torch.Tensor) -> torch.Tensor:
        told.append(x.shape)
        return by_columns(x)

    run = asked(replace(SQUARE, fake=fake, backward=None), X)
    assert len(told) == 1
    assert {run(X + place).stride() for place in range(3)} == {(1, 4)}
    assert len(told) == 1
    assert run(X.contiguous()).stride() == (1, 4)
    assert run(torch.ones(2, 5)).stride() == (1, 2)
    assert len(told) == 3
    for size in range(1000):
        run(torch.ones(2, size))
    assert run(X).stride() == (1, 4)


def test_a_number_that_a_fake_does_not_read_is_no_reason_to_ask_it() -> None:
    told: list[Any] = []

    def fake(x: torch.Tensor, _: float) -> torch.Tensor:
        told.append(x.shape)
        return by_columns(x)

    schema, reference = "scaled(Tensor x, float scale) -> Tensor y", lambda x, scale: x * scale
    run = asked(replace(SQUARE, name="scaled", schema=schema, reference=reference, fake=fake, backward=None), X, 1.0)
    assert {run(X, scale).stride() for scale in (2.0, 3.0)} == {(1, 4)}
    assert len(told) == 1


def test_the_rule_is_not_asked_where_all_tensors_are_row_major() -> None:
    told: list[Any] = []

    def rule(x: torch.Tensor) -> Any:
        told.append(x.shape)
        return [(x.shape, x.dtype)]

    for fake in (RowMajor(rule), RowMajor(rule, otherwise=by_columns)):
        assert asked(replace(SQUARE, fake=fake, backward=None), torch.ones(3, 4))(torch.ones(4, 5)).stride() == (5, 1)
    assert not told


def raising(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"nobody asks for {x.shape}")


@pytest.mark.parametrize("fake", [raising, lambda x: x.new_empty(int(x.sum().item())), RowMajor(raising)])
def test_a_fake_that_cannot_tell_leaves_outputs_as_the_reference_made_them(fake: Any, dispatcher: Dispatcher) -> None:
    op = replace(SQUARE, name="acme::untold", schema="acme::untold(Tensor x) -> Tensor y", fake=fake, backward=None)
    dispatcher.catalog.define(op)
    dispatcher.configure(mode="reference")
    for _ in range(3):
        y = dispatcher.call(op.name, X)
        assert torch.equal(y, X * X)
        assert y.stride() == X.stride()

"""Gradients of ops without a backward op of their own, and gradients that nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry import Backward, UnsupportedError
from registry.dispatch.dispatcher import Dispatcher

from ...serving import serving
from .toys import toy

close = torch.testing.assert_close


class Reference:
    """x**power * weight, its logarithm and its sign; remembers which tensors were to be differentiated."""

    def __init__(self) -> None:
        self.needed: list[tuple[bool, ...]] = []

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None, power: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if torch.is_grad_enabled():
            self.needed.append(tuple(one is not None and one.requires_grad for one in (x, weight)))
        y = x**power if weight is None else x**power * weight
        return y, y.abs().log(), (y > 0).to(torch.int32)


SCHEMA = "acme::power(Tensor x, Tensor? weight=None, *, int power=2) -> (Tensor y, Tensor log, Tensor sign)"


@pytest.fixture
def reference() -> Reference:
    return Reference()


@pytest.fixture
def powers(dispatcher: Dispatcher, reference: Reference) -> Iterator[Dispatcher]:
    dispatcher.catalog.define(toy(SCHEMA, reference, Backward.reference()))
    with serving(dispatcher):
        yield dispatcher


def leaves(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count).add(0.5).requires_grad_(), torch.rand(count).add(0.5).requires_grad_()


def test_the_gradient_is_the_references_while_a_kernel_runs_forward(
    powers: Dispatcher, told: Any, reference: Reference
) -> None:
    def by_kernel(x: torch.Tensor, weight: torch.Tensor | None, power: int) -> Any:
        with torch.no_grad():
            y = x.pow(power) if weight is None else x.pow(power) * weight
            return y, y.abs().log(), (y > 0).to(torch.int32)

    kernel = told("a.kernel", op="acme::power", result=by_kernel, returns_outputs=True)
    powers.register(kernel)
    for _ in range(2):
        x, weight = leaves()
        y, log, sign = powers.call("acme::power", x, weight, power=3)
        assert (y.requires_grad, log.requires_grad, sign.requires_grad) == (True, False, False)
        close(torch.autograd.grad(y.sum(), (x, weight)), (3 * x**2 * weight, x**3))
    assert len(kernel.runs) == 2
    assert powers.bound("acme::power").misses == 1
    y, *_ = powers.call("acme::power", x)
    close(torch.autograd.grad(y.sum(), x)[0], 2 * x)


def test_only_what_is_needed_is_recorded(powers: Dispatcher, reference: Reference) -> None:
    x, weight = leaves()
    for given in ((x, weight.detach()), (x.detach(), weight), (x, weight)):
        reference.needed.clear()
        powers.call("acme::power", *given)[0].sum().backward()
        assert reference.needed[-1] == tuple(one.requires_grad for one in given)
    close(weight.grad, 2 * x.detach() ** 2)


@pytest.mark.parametrize("differentiable", [("log",), ("y", "log")])
def test_another_output_is_differentiable_where_the_op_says_so(
    dispatcher: Dispatcher, reference: Reference, differentiable: tuple[str, ...]
) -> None:
    dispatcher.catalog.define(toy(SCHEMA, reference, Backward.reference(differentiable)))
    x, _ = leaves()
    outputs = dict(zip(("y", "log", "sign"), dispatcher.call("acme::power", x), strict=True))
    assert tuple(name for name, output in outputs.items() if output.requires_grad) == differentiable
    total = sum(outputs[name].sum() for name in differentiable)
    expected = 2 / x + (2 * x if "y" in differentiable else 0)
    close(torch.autograd.grad(total, x)[0], expected)


def test_the_gradient_is_checked_against_differences(powers: Dispatcher) -> None:
    x, weight = (tensor.detach().double().requires_grad_() for tensor in leaves())
    assert torch.autograd.gradcheck(lambda a, b: powers.call("acme::power", a, b)[0], (x, weight))


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [
        ("aot_eager", True),
        ("inductor", False),
        pytest.param("aot_eager", False, marks=pytest.mark.thorough),
        pytest.param("inductor", True, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.thorough
def test_it_compiles_whole(powers: Dispatcher, backend: str, dynamic: bool) -> None:
    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return powers.call("acme::power", x * 2, weight, power=3)[0].sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=dynamic)
    for count in (4, 5):
        x, weight = leaves(count)
        close(torch.autograd.grad(compiled(x, weight), (x, weight)), (24 * x**2 * weight, 8 * x**3))


def test_transforms_of_func_differentiate_it(powers: Dispatcher) -> None:
    x, weight = leaves()
    close(torch.func.grad(lambda x: powers.call("acme::power", x, weight)[0].sum())(x), 2 * x * weight)


def test_many_gradients_at_once_and_recomputation(powers: Dispatcher) -> None:
    x, weight = leaves(3)
    y = powers.call("acme::power", x, weight)[0]
    (rows,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    close(rows, torch.diag(2 * x * weight))
    y = torch.utils.checkpoint.checkpoint(
        lambda x, weight: powers.call("acme::power", x, weight)[0], x, weight, use_reentrant=False
    )
    close(torch.autograd.grad(y.sum(), weight)[0], x**2)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.thorough
def test_compiled_autograd_runs_it(powers: Dispatcher) -> None:
    x, weight = leaves()

    def step() -> None:
        powers.call("acme::power", x, weight)[0].sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="eager")()
    close(x.grad, 2 * x * weight)


def test_a_second_derivative_is_an_error(powers: Dispatcher) -> None:
    x, weight = leaves()
    (once,) = torch.autograd.grad(powers.call("acme::power", x, weight)[0].sum(), x, create_graph=True)
    close(once.detach(), 2 * x * weight)
    with pytest.raises(
        UnsupportedError, match=r"power: its gradient was differentiated again, which Backward.reference\(\)"
    ):
        once.sum().backward()


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.few(1)
def test_no_output_has_a_gradient_where_the_op_says_so(dispatcher: Dispatcher, compiling: bool) -> None:
    dispatcher.catalog.define(toy(SCHEMA, Reference(), Backward.none()))

    def added(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = dispatcher.call("acme::power", x)[0] + x
        return y

    x, _ = leaves()
    with serving(dispatcher):
        run = torch.compile(added, fullgraph=True, backend="aot_eager") if compiling else added
        (gradient,) = torch.autograd.grad(run(x).sum(), x)
        assert not any(output.requires_grad for output in dispatcher.call("acme::power", x))
    assert torch.equal(gradient, torch.ones(4))


def test_a_reference_without_gradient_is_told(dispatcher: Dispatcher) -> None:
    op = toy("acme::cut(Tensor x) -> Tensor y", lambda x: x.detach() * 2, Backward.reference())
    dispatcher.catalog.define(op)
    y = dispatcher.call("acme::cut", torch.ones(3, requires_grad=True))
    with pytest.raises(UnsupportedError, match=r"acme::cut: .* by its reference y does not depend on x\n.*detach\(\)"):
        y.sum().backward()


def scale_backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, need_x: bool, need_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    none = grad_y.new_empty(0)
    return grad_y * weight if need_x else none, grad_y * x if need_weight else none


SCALE = toy(
    "acme::scale(Tensor x, Tensor weight) -> Tensor y",
    lambda x, weight: x * weight,
    Backward("acme::scale_backward", ("x", "weight")),
)
SCALE_BACKWARD = toy(
    "acme::scale_backward(Tensor grad_y, Tensor x, Tensor weight, *, bool need_x=True, bool need_weight=True)"
    " -> (Tensor grad_x, Tensor grad_weight)",
    scale_backward,
)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.few(1)
def test_a_backward_op_is_told_which_gradients_are_needed(dispatcher: Dispatcher, told: Any, compiling: bool) -> None:
    asked: list[tuple[bool, bool]] = []

    def kernel(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *needs: bool) -> Any:
        asked.append((needs[0], needs[1]))
        return scale_backward(grad_y, x, weight, *needs)

    for op in (SCALE, SCALE_BACKWARD):
        dispatcher.catalog.define(op)
    dispatcher.register(told("a.back", op="acme::scale_backward", result=kernel, returns_outputs=True))
    with serving(dispatcher):
        scale: Any = lambda x, weight: dispatcher.call("acme::scale", x, weight)  # noqa: E731
        if compiling:
            scale = torch.compile(scale, fullgraph=True, backend="aot_eager")
        x, weight = leaves()
        for given in ((x, weight.detach()), (x.detach(), weight), (x, weight)):
            scale(*given).sum().backward()
    assert asked == [(True, False), (False, True), (True, True)]
    close((x.grad, weight.grad), (2 * weight, 2 * x))


def test_a_mask_that_is_no_bool_does_not_fit(dispatcher: Dispatcher) -> None:
    schema = SCALE_BACKWARD.schema.replace("bool need_x=True", "int need_x=1")
    dispatcher.catalog.define(SCALE)
    with pytest.raises(TypeError, match="takes need_x as int, expected a bool"):
        dispatcher.catalog.define(replace(SCALE_BACKWARD, schema=schema))

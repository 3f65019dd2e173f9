"""Gradients of tensors in lists: by a backward op, by the reference, and by the output's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry import Backward, InvalidDefinitionError, UnsupportedError
from registry.dispatch.dispatcher import Dispatcher

from ...tiers import one_of_each
from .toys import toy

close = torch.testing.assert_close
Tensors = tuple[torch.Tensor, ...]


SCHEMA = "acme::blend(Tensor x, Tensor[] weights, int[] powers, Tensor[] more, float by=1.0) -> Tensor y"
"""``x * weights[i].sum()**powers[i] * by`` summed over i, and the sums of ``more``."""


def blend(x: torch.Tensor, weights: Tensors, powers: Sequence[int], more: Tensors, by: float) -> torch.Tensor:
    y = x * 0
    for weight, power in zip(weights, powers, strict=True):
        y = y + x * weight.sum() ** power * by
    for other in more:
        y = y + other.sum()
    return y


def blend_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weights: Tensors,
    more: Tensors,
    powers: Sequence[int],
    by: float,
    *needs: Any,
) -> Tensors:
    need_x, need_weights, need_more = needs
    sums = [weight.sum() for weight in weights]
    factor: Any = sum(one**power for one, power in zip(sums, powers, strict=True)) * by
    along = (grad_y * x).sum()
    parts = [
        along * power * one ** (power - 1) * by if need else x.new_full((), torch.nan)
        for one, power, need in zip(sums, powers, need_weights, strict=True)
    ]
    flat = [part.expand(weight.numel()) for part, weight in zip(parts, weights, strict=True)]
    grad_more = [grad_y.sum().expand(other.numel()) for other in more] if need_more else []
    none = grad_y.new_empty(0)
    return (
        grad_y * factor if need_x else none,
        torch.cat(flat) if flat else none,
        torch.cat(grad_more) if grad_more else none,
    )


BY_OP = toy(SCHEMA, blend, Backward("acme::blend_backward", ("x", "weights", "more")))
BACKWARD = toy(
    "acme::blend_backward(Tensor grad_y, Tensor x, Tensor[] weights, Tensor[] more, int[] powers, float by, *,"
    " bool need_x, int[] need_weights, bool need_more) -> (Tensor grad_x, Tensor grad_weights, Tensor grad_more)",
    blend_backward,
)
BY_REFERENCE = toy(SCHEMA, blend, Backward.reference())


@pytest.fixture(params=["op", "reference", "kernel"])
def blending(request: pytest.FixtureRequest, dispatcher: Dispatcher, told: Any) -> Dispatcher:
    """The op with a backward op, with the reference's gradient, and with kernels for both ways of a backward op."""
    ops = [BY_REFERENCE] if request.param == "reference" else [BY_OP, BACKWARD]
    for op in ops:
        dispatcher.catalog.define(op)
    for op in ops if request.param == "kernel" else ():
        dispatcher.register(told(f"a.{op.hook}", op=op.name, result=op.reference, returns_outputs=True))
    return dispatcher


def leaves(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (2, 2), (), (1, 5)]
    made = [torch.rand(shape, dtype=dtype, generator=generator).add(0.5).requires_grad_() for shape in shapes]
    return torch.rand(4, dtype=dtype, generator=generator).requires_grad_(), made[:3], made[3:]


def test_the_gradient_of_every_tensor_of_a_list_is_autograds(blending: Dispatcher) -> None:
    for _ in range(3):
        x, weights, more = leaves()
        seed = torch.randn(4)
        y = blending.call("acme::blend", x, weights, [1, 2, 3], more, by=0.5)
        found = torch.autograd.grad(y, [x, *weights, *more], seed)
        close(
            found,
            torch.autograd.grad(blend(x, tuple(weights), (1, 2, 3), tuple(more), 0.5), [x, *weights, *more], seed),
        )
        assert [one.shape for one in found] == [one.shape for one in (x, *weights, *more)]
    assert blending.bound("acme::blend").misses <= 1


def test_the_gradient_is_checked_against_differences(blending: Dispatcher) -> None:
    x, weights, more = leaves(torch.float64)

    def f(x: torch.Tensor, *tensors: torch.Tensor) -> Any:
        return blending.call("acme::blend", x, list(tensors[:3]), [1, 2, 3], tensors[3:], by=0.5)

    assert torch.autograd.gradcheck(f, (x, *weights, *more))


@pytest.mark.parametrize("needed", [(0,), (1,), (2, 4), (4,), (1, 2, 3), (0, 4), (3,)])
@pytest.mark.few(7)
def test_only_what_needs_a_gradient_gets_one(blending: Dispatcher, needed: tuple[int, ...]) -> None:
    x, weights, more = leaves()
    every = [one if place in needed else one.detach() for place, one in enumerate((x, *weights, *more))]
    y = blending.call("acme::blend", every[0], every[1:4], [1, 2, 3], every[4:])
    y.sum().backward()
    wanted = torch.autograd.grad(blend(x, (*weights,), (1, 2, 3), (*more,), 1.0).sum(), (x, *weights, *more))
    for place, one in enumerate(every):
        assert (one.grad is not None) == (place in needed)
        if one.grad is not None:
            close(one.grad, wanted[place])


def test_one_tensor_in_several_places_gets_the_sum(blending: Dispatcher) -> None:
    x, (weight, *_), _ = leaves()
    y = blending.call("acme::blend", x, [weight, weight], [1, 3], [weight])
    found = torch.autograd.grad(y.sum(), (x, weight))
    close(found, torch.autograd.grad(blend(x, (weight, weight), (1, 3), (weight,), 1.0).sum(), (x, weight)))


def test_lists_without_a_tensor(blending: Dispatcher) -> None:
    x, weights, _ = leaves()
    y = blending.call("acme::blend", x, weights, [1, 2, 3], [])
    close(
        torch.autograd.grad(y.sum(), weights[1])[0],
        torch.autograd.grad(blend(x, (*weights,), (1, 2, 3), (), 1.0).sum(), weights[1])[0],
    )
    y = blending.call("acme::blend", x, [], [], [])
    close(torch.autograd.grad(y.sum(), x)[0], torch.zeros(4))


def test_a_saved_tensor_of_a_list_that_was_changed_is_noticed(blending: Dispatcher) -> None:
    x, weights, more = leaves()
    y = blending.call("acme::blend", x, weights, [1, 2, 3], more)
    with torch.no_grad():
        weights[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_list_that_the_caller_changes_before_the_backward_does_not_matter(blending: Dispatcher) -> None:
    x, weights, more = leaves()
    kept, powers = list(weights), [1, 2, 3]
    y = blending.call("acme::blend", x, weights, powers, more)
    weights.reverse()
    powers.clear()
    close(
        torch.autograd.grad(y.sum(), kept),
        torch.autograd.grad(blend(x, (*kept,), (1, 2, 3), (*more,), 1.0).sum(), kept),
    )


def test_a_second_derivative_through_a_list_is_an_error(blending: Dispatcher) -> None:
    x, weights, more = leaves()
    y = blending.call("acme::blend", x, weights, [1, 2, 3], more)
    once = torch.autograd.grad(y.sum(), weights, create_graph=True)
    close(once, torch.autograd.grad(blend(x, (*weights,), (1, 2, 3), (*more,), 1.0).sum(), weights))
    with pytest.raises(UnsupportedError, match="its gradient was differentiated again"):
        once[1].sum().backward()


@pytest.mark.parametrize(
    ("blending", "backend"),
    # what Inductor is given does not depend on whose gradient it is
    [
        ("op", "inductor"),
        *((whose, "aot_eager") for whose in ("reference", "kernel")),
        pytest.param("op", "aot_eager", marks=pytest.mark.thorough),
        *(pytest.param(whose, "inductor", marks=pytest.mark.thorough) for whose in ("reference", "kernel")),
    ],
    indirect=["blending"],
)
@pytest.mark.thorough
def test_it_compiles_whole(blending: Dispatcher, backend: str) -> None:
    def loss(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = blending.call("acme::blend", x * 2, list(tensors[:3]), [1, 2, 3], list(tensors[3:]), by=0.5)
        return y.sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    # torch's cache on disk knows an op by its name, and three of one name are defined here
    with torch._functorch.config.patch(enable_autograd_cache=False):
        for _ in range(2):
            x, weights, more = leaves()
            every = [x, *weights, *more]
            wanted = blend(x * 2, (*weights,), (1, 2, 3), (*more,), 0.5).sum()
            close(torch.autograd.grad(compiled(*every), every), torch.autograd.grad(wanted, every))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("blending", one_of_each(["op", "reference", "kernel"]), indirect=True)
@pytest.mark.thorough
def test_compiled_autograd_runs_it(blending: Dispatcher) -> None:
    x, weights, more = leaves()

    def step() -> None:
        blending.call("acme::blend", x, weights, [1, 2, 3], more).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="eager")()
    wanted = torch.autograd.grad(blend(x, (*weights,), (1, 2, 3), (*more,), 1.0).sum(), [x, *weights])
    close([x.grad, *[weight.grad for weight in weights]], list(wanted))


def test_optimisers_step_and_zero_gradients_of_a_list(blending: Dispatcher) -> None:
    x, weights, more = leaves()
    optimiser = torch.optim.SGD([x, *weights, *more], lr=0.1)
    for set_to_none in (False, True):
        before = [weight.detach().clone() for weight in weights]
        for _ in range(2):  # accumulates
            blending.call("acme::blend", x, weights, [1, 2, 3], more).sum().backward()
        wanted = torch.autograd.grad(blend(x, (*weights,), (1, 2, 3), (*more,), 1.0).sum(), weights)
        close([weight.grad for weight in weights], [2 * one for one in wanted])
        optimiser.step()
        close(
            [weight.detach() for weight in weights], [old - 0.2 * one for old, one in zip(before, wanted, strict=True)]
        )
        optimiser.zero_grad(set_to_none=set_to_none)


def test_a_sum_of_a_list_hands_its_gradient_on(dispatcher: Dispatcher, told: Any) -> None:
    op = toy("acme::total(Tensor[] xs) -> Tensor y", lambda xs: torch.stack(list(xs)).sum(0), Backward(None, ()))
    dispatcher.catalog.define(op)
    kernel = told("a.total", op="acme::total", result=lambda xs: torch.stack(xs).sum(0))
    dispatcher.register(kernel)
    xs, seed = [torch.randn(4, requires_grad=place != 1) for place in range(3)], torch.randn(4)
    for _ in range(2):
        y = dispatcher.call("acme::total", xs)
        close(torch.autograd.grad(y, [xs[0], xs[2]], seed), (seed, seed))
    assert len(kernel.runs) == 2


def test_a_gradient_of_another_size_than_the_list_is_told(dispatcher: Dispatcher) -> None:
    dispatcher.catalog.define(BY_OP)
    dispatcher.catalog.define(
        replace(BACKWARD, reference=lambda *given: tuple(one[:2] for one in blend_backward(*given)))
    )
    x, weights, more = leaves()
    y = dispatcher.call("acme::blend", x.detach(), weights, [1, 2, 3], more)
    with pytest.raises(InvalidDefinitionError, match=r"blend_backward: grad_weights has 2 elements, .* weights have 8"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        (
            "Tensor[] weights, Tensor[] more",
            "Tensor weights, Tensor[] more",
            r"takes weights as Tensor, expected a Tensor\[\]",
        ),
        ("int[] need_weights", "float need_weights", r"takes need_weights as float, expected a bool or an int\[\]"),
        ("bool need_x", "int[] need_x", r"takes need_x as int\[\], expected a bool"),
    ],
)
def test_a_backward_op_that_does_not_fit_a_list_is_refused(
    dispatcher: Dispatcher, was: str, now: str, told: str
) -> None:
    dispatcher.catalog.define(BY_OP)
    with pytest.raises(InvalidDefinitionError, match=told):
        dispatcher.catalog.define(replace(BACKWARD, schema=BACKWARD.schema.replace(was, now)))

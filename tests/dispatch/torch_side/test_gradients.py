"""Gradients of eager calls: the tuned forward, the op's own backward op, and an error instead of a silent gap."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from registry import Backward, UnknownNameError, UnsupportedError
from registry.dispatch.dispatcher import Dispatcher

from .toys import toy

close = torch.testing.assert_close


def cube_and_sign(x: torch.Tensor, weight: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x**3 * weight * factor, (x > 0).to(torch.int32)


def cube_backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return grad_y * 3 * x**2 * weight * factor, grad_y * x**3 * factor


CUBE = toy(
    "acme::cube(Tensor x, Tensor weight, *, float factor=2.0) -> (Tensor y, Tensor sign)",
    cube_and_sign,
    Backward("acme::cube_backward", ("x", "weight")),
)
CUBE_BACKWARD = toy(
    "acme::cube_backward(Tensor grad_y, Tensor x, Tensor weight, *, float factor=2.0)"
    " -> (Tensor grad_x, Tensor grad_weight)",
    cube_backward,
)


@pytest.fixture
def toys(dispatcher: Dispatcher) -> Dispatcher:
    for op in (CUBE_BACKWARD, CUBE):
        dispatcher.catalog.define(op)
    return dispatcher


def softmax_backward(grad_y: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten._softmax_backward_data(grad_y, y, dim, y.dtype)
    return found


def leaves(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)


def test_several_outputs_inputs_and_an_attribute_by_keyword(toys: Dispatcher) -> None:
    for _ in range(2):
        x, weight = leaves(5)
        y, sign = toys.call("acme::cube", x, weight, factor=3.0)
        assert (y.requires_grad, sign.requires_grad) == (True, False)
        close(torch.autograd.grad(y.sum(), (x, weight)), (9 * x**2 * weight, 3 * x**3))
    assert toys.bound("acme::cube").misses == 1, "a call with a gradient is a hit, too"


def test_the_gradient_is_checked_against_differences(toys: Dispatcher) -> None:
    x, weight = (tensor.detach().double().requires_grad_() for tensor in leaves(4))
    assert torch.autograd.gradcheck(lambda a, b: toys.call("acme::cube", a, b)[0], (x, weight))


def test_only_the_gradients_that_are_needed_come_back(toys: Dispatcher) -> None:
    x, weight = leaves(5)
    y, _ = toys.call("acme::cube", x, weight.detach())
    y.sum().backward()
    close(x.grad, 6 * x**2 * weight)
    y, _ = toys.call("acme::cube", x.detach(), weight)
    y.sum().backward()
    close(weight.grad, 2 * x**3)


def test_forward_and_backward_run_what_dispatch_chose(dispatcher: Dispatcher, told: Any) -> None:
    forward, back = (
        told("a.forward"),
        told("a.back", op="softmax_backward", result=torch.ops.aten._softmax_backward_data),
    )
    back._behaviour["result"] = lambda grad_y, y, dim: torch.ops.aten._softmax_backward_data(grad_y, y, dim, y.dtype)
    for implementation in (forward, back):
        dispatcher.register(implementation)
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(2):
        y = dispatcher.call("softmax", x)
        seed = torch.randn(4, 8)
        close(torch.autograd.grad(y, x, seed), torch.autograd.grad(torch.softmax(x, -1), x, seed))
    assert (len(forward.runs), len(back.runs)) == (2, 2)
    assert dispatcher.bound("softmax").misses == 1
    assert dispatcher.bound("softmax_backward").misses == 1
    assert dispatcher.explain("softmax", x).implementation == "a.forward"


def test_the_backward_obeys_the_using_of_its_forward_on_any_thread(dispatcher: Dispatcher, told: Any) -> None:
    one, other = (told(f"a.{name}", op="softmax_backward", result=softmax_backward) for name in ("one", "other"))
    for implementation in (one, other):
        dispatcher.register(implementation)
    x = torch.randn(4, 8, requires_grad=True)
    with dispatcher.using(softmax_backward="a.other"):
        inside = dispatcher.call("softmax", x)
    outside = dispatcher.call("softmax", x)
    thread = threading.Thread(target=lambda: inside.sum().backward())
    thread.start()
    thread.join()
    assert (len(one.runs), len(other.runs)) == (0, 1)
    with dispatcher.using(softmax_backward="a.other"):
        outside.sum().backward()
    assert (len(one.runs), len(other.runs)) == (1, 1), "a block around the backward alone says nothing"
    assert dispatcher.forcing.active == 0


def test_an_addition_hands_its_gradient_on(dispatcher: Dispatcher, told: Any) -> None:
    add = told("a.add", op="vector_add", result=torch.add)
    dispatcher.register(add)
    x, y = leaves(6)
    seed = torch.randn(6)
    found = torch.autograd.grad(dispatcher.call("vector_add", x, y), (x, y), seed)
    assert all(gradient.equal(seed) for gradient in found)
    z = dispatcher.call("vector_add", x, x)
    (once,) = torch.autograd.grad((z**2).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    close(twice, torch.full_like(x, 8.0))
    assert len(add.runs) == 2


def test_a_second_derivative_is_an_error_and_not_a_missing_term(dispatcher: Dispatcher) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    y = dispatcher.call("softmax", x)
    (once,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    close(once.detach(), torch.autograd.grad(torch.softmax(x, -1).pow(2).sum(), x)[0])
    with pytest.raises(
        UnsupportedError, match=r"softmax: its gradient was differentiated again.*\n.*mode=\"reference\""
    ):
        once.sum().backward()


def test_an_op_without_a_backward_refuses_before_anything_runs(dispatcher: Dispatcher) -> None:
    dispatcher.catalog.define(toy("acme::twice(Tensor x) -> Tensor y", lambda x: 2 * x))
    x = torch.randn(4, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            assert not dispatcher.call("acme::twice", x).requires_grad
        with pytest.raises(UnsupportedError, match=r"acme::twice: an input needs a gradient.*\n.*detach"):
            dispatcher.call("acme::twice", x)
    dispatcher.configure(mode="reference")
    dispatcher.call("acme::twice", x).sum().backward()
    close(x.grad, torch.full_like(x, 2.0))


def test_an_input_that_the_backward_op_leaves_out_must_be_detached(dispatcher: Dispatcher) -> None:
    only_x = toy(
        "acme::scale_backward(Tensor grad_y, Tensor weight) -> Tensor grad_x", lambda grad_y, weight: grad_y * weight
    )
    scale = toy(
        "acme::scale(Tensor x, Tensor weight) -> Tensor y",
        lambda x, weight: x * weight,
        Backward("acme::scale_backward", ("weight",)),
    )
    for op in (scale, only_x):
        dispatcher.catalog.define(op)
    x, weight = leaves(3)
    with pytest.raises(UnsupportedError, match=r"weight needs a gradient.*\n.*pass weight\.detach\(\)"):
        dispatcher.call("acme::scale", x, weight)
    dispatcher.call("acme::scale", x, weight.detach()).sum().backward()
    close(x.grad, weight.detach())


def test_a_backward_op_that_nobody_defines_is_named(dispatcher: Dispatcher) -> None:
    dispatcher.catalog.define(toy("acme::lost(Tensor x) -> Tensor y", torch.neg, Backward("acme::lost_backward", ())))
    with pytest.raises(UnknownNameError, match=r"acme::lost: backward=.* names an unknown op 'acme::lost_b"):
        dispatcher.call("acme::lost", torch.randn(3, requires_grad=True))


def test_a_saved_tensor_that_was_changed_is_noticed(toys: Dispatcher) -> None:
    x, weight = leaves(3)
    y, _ = toys.call("acme::cube", x, weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_op_that_writes_tells_autograd(dispatcher: Dispatcher) -> None:
    dispatcher.catalog.define(toy("acme::bump(Tensor(a!) x) -> Tensor y", lambda x: x.add_(1).clone()))
    x = torch.zeros(3)
    version = x._version
    for _ in range(2):
        dispatcher.call("acme::bump", x)
    assert x.eq(2).all()
    assert x._version >= version + 2
    with pytest.raises(UnsupportedError, match="needs a gradient"):
        dispatcher.call("acme::bump", torch.zeros(3, requires_grad=True).clone())


def test_a_plan_that_fails_gives_way_with_the_gradient_intact(dispatcher: Dispatcher, told: Any) -> None:
    good = told("a.good", -5.0)
    for implementation in (told("a.bad", 5.0, run_fault=RuntimeError("no")), good):
        dispatcher.register(implementation)
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.warns(Warning, match=r"a\.bad"):
        y = dispatcher.call("softmax", x)
    close(torch.autograd.grad(y[:, 0].sum(), x), torch.autograd.grad(torch.softmax(x, -1)[:, 0].sum(), x))
    assert len(good.runs) == 1


def test_checkpointing_and_hooks_on_saved_tensors(dispatcher: Dispatcher) -> None:
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    plain = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6).pow(2).sum()
    y = torch.utils.checkpoint.checkpoint(
        lambda *args: dispatcher.call("rms_norm", *args).pow(2).sum(), x, weight, use_reentrant=False
    )
    close(torch.autograd.grad(y, (x, weight)), torch.autograd.grad(plain, (x, weight)))


@pytest.mark.filterwarnings("error", "ignore:torch's reference runs. nobody implements softmax_backward")
def test_checkpointing_that_ends_in_the_call_blames_nobody(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    x = torch.randn(4, 8, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda t: dispatcher.call("softmax", t * 2), x, use_reentrant=False)
    # recomputation resolves anew, and is stopped by an exception as soon as the output was saved
    dispatcher.bound("softmax").clear()
    (found,) = torch.autograd.grad(y.pow(2).sum(), x)
    close(found, torch.autograd.grad(torch.softmax(x * 2, -1).pow(2).sum(), x)[0])
    assert not dispatcher.bound("softmax").plans.failures
    assert dispatcher.explain("softmax", x).implementation == "a.one"


def test_a_hook_that_refuses_what_is_saved_is_the_callers_error(dispatcher: Dispatcher, told: Any) -> None:
    one = told("a.one")
    dispatcher.register(one)

    def refuse(_tensor: torch.Tensor) -> Any:
        raise ValueError("not to be saved")

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), pytest.raises(ValueError, match="not to be"):
            dispatcher.call("softmax", torch.randn(4, 8, requires_grad=True))
    assert len(one.runs) == 2
    assert not dispatcher.bound("softmax").plans.failures


def test_gradients_of_a_batch_of_seeds(dispatcher: Dispatcher, told: Any) -> None:
    back = told("a.back", op="softmax_backward", result=softmax_backward)
    for implementation in (told("a.forward"), back):
        dispatcher.register(implementation)
    x, seeds = torch.randn(4, 8, requires_grad=True), torch.randn(3, 4, 8)
    for _ in range(2):
        (found,) = torch.autograd.grad(dispatcher.call("softmax", x), x, seeds, is_grads_batched=True)
        close(found, torch.stack([torch.autograd.grad(torch.softmax(x, -1), x, seed)[0] for seed in seeds]))
        torch.autograd.grad(dispatcher.call("softmax", x).sum(), x)
    assert len(back.runs) == 2, "the kernel runs for one seed alone"

"""What the table's guard must refuse, with torch's own guard and with the public fallback."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from registry import TensorSpec
from registry.dispatch.hit.guards import aligned, determinism_not_asked, matcher, misaligned
from registry.dispatch.hit.table import same
from registry.dispatch.torch_side import torch_private
from registry.dispatch.torch_side.torch_private import (
    Allocate,
    native_allocator,
    native_guard,
    public_allocator,
    public_guard,
)

from ... import fresh

BOTH = pytest.mark.parametrize("guard", [native_guard, public_guard])


class Subclass(torch.Tensor):
    """A tensor with nothing of its own but its class."""


def x() -> torch.Tensor:
    return torch.zeros(4, 8)


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "other shape": lambda: torch.zeros(5, 8),
    "other strides": lambda: torch.zeros(8, 4).t(),
    "other dtype": lambda: x().double(),
    "meta": lambda: x().to("meta"),
    "requires grad": lambda: x().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(x(), requires_grad=False),
    "subclass": lambda: x().as_subclass(Subclass),
    "fake": lambda: FakeTensorMode().from_tensor(x()),
    "lazy negation": lambda: torch._neg_view(x()),
    "zero without memory": lambda: torch._efficientzerotensor((4, 8)),
    "sparse": lambda: x().to_sparse(),
}


@BOTH
def test_same_kind_of_tensor_is_accepted(guard: Callable[..., Callable[..., bool]]) -> None:
    assert guard(x())(torch.ones(4, 8))


@BOTH
@pytest.mark.parametrize("kind", REFUSED)
def test_other_kinds_of_tensors_are_refused(guard: Callable[..., Callable[..., bool]], kind: str) -> None:
    assert not guard(x())(REFUSED[kind]())


@BOTH
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_states_of_torch_are_refused(guard: Callable[..., Callable[..., bool]]) -> None:
    check, tensor = guard(x()), x()
    seen: list[bool] = []

    def look(inner: torch.Tensor) -> torch.Tensor:
        seen.extend([check(inner), check(tensor)])
        return inner.sum()

    with torch.inference_mode():
        look(x())
    with torch.autocast("cpu"):
        look(x())
    torch.vmap(look)(torch.zeros(2, 4, 8))
    torch.func.grad(look)(x())
    torch.jit.trace(look, (tensor,), check_trace=False)
    assert seen == [False] * 10


@BOTH
def test_another_number_of_tensors_is_an_error_not_a_match(guard: Callable[..., Callable[..., bool]]) -> None:
    with pytest.raises(TypeError):
        guard(x())(x(), x())


def test_this_torch_has_the_fast_ways() -> None:
    assert torch_private.NATIVE_GUARD
    assert torch_private.NATIVE_ALLOCATOR


@pytest.mark.parametrize(
    "state",
    [
        "torch.inference_mode()",
        pytest.param("torch.autocast('cpu')", marks=pytest.mark.thorough),
        pytest.param("torch.device('meta')", marks=pytest.mark.thorough),
        "FakeTensorMode()",
        pytest.param("doubles()", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.few(1)
def test_the_fast_ways_do_not_depend_on_where_the_import_stands(state: str) -> None:
    code = (
        "import torch, contextlib\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "doubles = lambda: contextlib.nullcontext(torch.set_default_dtype(torch.float64))\n"
        f"with {state}:\n"
        "    from registry.dispatch.torch_side import torch_private\n"
        "print(torch_private.NATIVE_GUARD, torch_private.NATIVE_ALLOCATOR)\n"
    )
    done = fresh.run("-c", code)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


SPEC = TensorSpec((3, 5), torch.bfloat16, (1, 3))


@pytest.mark.parametrize("make", [native_allocator(SPEC.device), public_allocator(SPEC.dtype, SPEC.device)])
def test_allocators_obey_the_spec_and_inference_mode(make: Allocate) -> None:
    spec, allocate = SPEC, partial(make, SPEC.shape, SPEC.strides, SPEC.dtype)
    assert TensorSpec.of(allocate()) == spec
    with torch.inference_mode():
        assert allocate().is_inference()
    with torch.device("meta"):
        assert allocate().device.type == "cpu"


@pytest.mark.parametrize(("first", "second"), [(1, True), (1, 1.0), (0.0, -0.0), (0, False), (None, 0), ("a", "b")])
def test_plain_values_are_compared_by_type_and_value(first: object, second: object) -> None:
    assert same(first, first)
    assert same(second, second)
    assert not same(first, second)
    assert not same(second, first)


@pytest.mark.parametrize("conditions", [(), (aligned,), (aligned, determinism_not_asked)])
def test_tensors_that_may_be_left_out_are_compared_too(conditions: tuple[Any, ...]) -> None:
    match = matcher((x(), None, x()), conditions)
    assert match(x(), None, x())
    assert not match(x(), x(), x())
    assert not match(None, None, x())
    assert not match(x(), None, x().double())
    assert matcher((x(), x(), x()), conditions)(x(), x(), x())
    assert not matcher((x(), x(), x()), conditions)(x(), None, x())


def test_conditions_narrow_a_guard() -> None:
    shifted = torch.zeros(33)[1:].view(4, 8)
    assert matcher((x(),))(shifted)
    assert not matcher((x(),), (aligned,))(shifted)
    assert matcher((shifted,), (misaligned,))(shifted)
    assert not matcher((shifted,), (misaligned,))(x())
    assert not matcher((x(), x()), (aligned,))(x(), shifted)


def test_one_tensor_given_twice_matches() -> None:
    one = x()
    match = matcher((one, one))
    assert match(one, one)
    assert match(x(), x())
    assert not match(one, one.double())


WITHOUT = """
import os, torch, torch.func, torch._dynamo, torch.fx.experimental.proxy_tensor as proxy
from torch.autograd import forward_ad

def calls_are_right_without(owner, part):
    kept = getattr(owner, part)
    delattr(owner, part)
    import registry
    from registry.dispatch.torch_side import torch_private
    setattr(owner, part, kept)
    assert torch_private.transforming() is (part == "_functorch")
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(2):
        y = registry.call("softmax", x)
        torch.testing.assert_close(y, torch.softmax(x, -1))
        torch.autograd.grad(y.sum(), x)
        y = torch.vmap(lambda row: registry.call("softmax", row))(x.detach())
        torch.testing.assert_close(y, torch.softmax(x, -1).detach())
        with forward_ad.dual_level():
            y = registry.call("square", forward_ad.make_dual(x.detach(), x.detach()))
            torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, 2 * x.detach() ** 2)
    with torch.no_grad():
        graph = proxy.make_fx(torch.ops.kernel_registry.softmax)(x)
    torch.testing.assert_close(graph(x.detach()), torch.softmax(x, -1).detach())

parts = {
    "the level of forward_ad": (forward_ad, "_current_level"),
    "the guard": (torch._C, "_AutoDispatchBelowAutograd"),
    "functorch": (torch._C, "_functorch"),
}
for name, (owner, part) in parts.items():
    child = os.fork()
    if child == 0:
        calls_are_right_without(owner, part)
        break
    print(name, os.waitpid(child, 0)[1])
"""
"""Leaves each part out in a process of its own, forked from one that has imported torch's tracer; prints exit codes."""


@pytest.mark.thorough
def test_without_a_private_part_of_torch_calls_are_right_and_slow() -> None:
    done = fresh.run("-c", WITHOUT)
    assert done.stdout.splitlines() == ["the level of forward_ad 0", "the guard 0", "functorch 0"], done.stderr

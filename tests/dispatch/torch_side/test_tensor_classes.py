"""Tensor subclasses: what is just memory runs kernels, what behaves runs torch's own operations and says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry import DispatchWarning
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side.tensor_classes import KINDS

from ...serving import serving


class Named(torch.Tensor):
    """A subclass without overrides."""


class Further(Named):
    """A subclass of that."""


class Other(torch.Tensor):
    """A subclass beside it."""


class Weight(torch.nn.Parameter):
    """As FSDP's: it holds more than a tensor."""

    weight_loader: Callable[..., Any] | None = None


class Loaded(torch.nn.Parameter):
    """As vLLM's: for Dynamo's sake it hands on what torch asks."""

    def __new__(cls, data: torch.Tensor, **_kwargs: Any) -> Any:
        return super().__new__(cls, data=data, requires_grad=False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if kwargs is None:
            kwargs = {}
        return super().__torch_function__(func, types, args, kwargs)


class Column(Loaded):
    """One that inherits it."""


class Doubling(torch.Tensor):
    """A class with a behaviour of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.softmax:
            return torch.softmax(args[0].as_subclass(torch.Tensor), *args[1:]) * 2
        return super().__torch_function__(func, types, args, kwargs)


class Elsewhere(torch.Tensor):
    """A class that tells another address than that of its elements."""

    def data_ptr(self) -> int:
        return 16


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (torch.Tensor, "memory"),
        (torch.nn.Parameter, "memory"),
        (Weight, "memory"),
        (Loaded, "heard"),
        (Column, "heard"),
        (Named, "named"),
        (Further, "named"),
        (Doubling, "own"),
        (Elsewhere, "own"),
        (torch.nn.parameter.UninitializedParameter, "own"),
        (torch._subclasses.FakeTensor, "own"),
    ],
)
def test_what_a_class_is(kind: type, found: str) -> None:
    assert KINDS[kind] == found


def torchs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


@pytest.fixture
def normalises(dispatcher: Dispatcher, told: Any) -> Any:
    made = told("a.norm", 5.0, op="rms_norm", result=lambda x, w, eps: torchs(x, w))
    dispatcher.register(made)
    return made


MAKES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Weight": Weight,
    "Loaded": Loaded,
    "Column": Column,
    "Named": lambda t: t.as_subclass(Named),
    "made": lambda t: torch.Tensor._make_subclass(Further, t),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("way", ["call", "op", "torch.ops"])
@pytest.mark.few(5)
def test_a_weight_that_is_just_memory_runs_the_kernel(
    dispatcher: Dispatcher, normalises: Any, make: Callable[[torch.Tensor], torch.Tensor], way: str
) -> None:
    ways: dict[str, Callable[..., Any]] = {
        "call": lambda *args: dispatcher.call("rms_norm", *args),
        "op": dispatcher.op("rms_norm"),
        "torch.ops": torch.ops.kernel_registry.rms_norm,
    }
    w = make(torch.randn(16)).requires_grad_(False)
    with serving(dispatcher):
        for number in range(3):
            x = torch.randn(4, 16)
            y, expected = ways[way](x, w), torchs(x, w)
            torch.testing.assert_close(y, expected)
            assert type(y) is type(expected)
            assert len(normalises.runs) == number + 1
    assert dispatcher.bound("rms_norm").misses == 1
    assert dispatcher.explain("rms_norm", torch.randn(4, 16), w).implementation == "a.norm"


@pytest.mark.parametrize("make", [Weight, MAKES["Named"]], ids=["Weight", "Named"])
def test_gradients_of_what_is_just_memory(
    dispatcher: Dispatcher, normalises: Any, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    values = torch.randn(16)
    for number in range(2):
        x = torch.randn(4, 16)
        grads = []
        for call in (lambda *args: dispatcher.call("rms_norm", *args), torchs):
            w = make(values.clone()).requires_grad_()
            call(x, w).pow(2).sum().backward()
            assert w.grad is not None
            grads.append(w.grad)
        torch.testing.assert_close(*[grad.as_subclass(torch.Tensor) for grad in grads])
        assert type(grads[0]) is type(grads[1])
        assert len(normalises.runs) == number + 1


def test_results_are_of_the_class_that_torch_gives(dispatcher: Dispatcher, normalises: Any) -> None:
    x, w = torch.randn(4, 16), torch.randn(16)
    for one, other, kind in [
        (x.as_subclass(Named), w, Named),
        (x, w.as_subclass(Named), Named),
        (x.as_subclass(Named), w.as_subclass(Further), Further),
        (x.as_subclass(Named), Weight(w, requires_grad=False), Named),
    ]:
        for _ in range(2):
            y = dispatcher.call("rms_norm", one, other)
            assert type(y) is type(torchs(one, other)) is kind
            torch.testing.assert_close(y.as_subclass(torch.Tensor), torchs(x, w))
    assert len(normalises.runs) == 8


def test_another_size_of_a_call_with_such_a_weight(dispatcher: Dispatcher, normalises: Any) -> None:
    w = Weight(torch.randn(16), requires_grad=False)
    for rows in (2, 3, 4, 5):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(dispatcher.call("rms_norm", x, w), torchs(x, w))
    assert len(normalises.runs) == 4


def test_a_class_with_a_behaviour_runs_torch_and_says_so_once(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.soft", 5.0))
    with pytest.warns(
        DispatchWarning, match=r"softmax: torch's reference runs, .* Doubling is a tensor subclass"
    ) as seen:
        y = dispatcher.call("softmax", torch.zeros(2, 2).as_subclass(Doubling), -1)
    assert y.as_subclass(torch.Tensor).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert (len(seen), seen[0].filename) == (1, __file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dispatcher.call("softmax", torch.zeros(3, 2).as_subclass(Doubling), -1)
        dispatcher.configure(mode="reference")
        dispatcher.call("softmax", torch.zeros(3, 2).as_subclass(Elsewhere), -1)
    dispatcher.configure(mode="tuned")
    with pytest.warns(DispatchWarning, match="Elsewhere is a tensor subclass"):
        dispatcher.call("softmax", torch.zeros(3, 2).as_subclass(Elsewhere), -1)


def test_classes_that_are_not_in_line_are_for_torch_to_refuse(dispatcher: Dispatcher, normalises: Any) -> None:
    x, w = torch.randn(4, 16).as_subclass(Named), torch.randn(16).as_subclass(Other)
    with pytest.raises(TypeError, match="__torch_function__"):
        torchs(x, w)
    with pytest.raises(TypeError, match="'Named' and 'Other'"):
        dispatcher.call("rms_norm", x, w)
    assert not normalises.runs

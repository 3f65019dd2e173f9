"""Other sizes of an answered call: the miss is spared what a size cannot change, and sees to all that is unusual."""

from __future__ import annotations

import warnings

import pytest
import torch

import registry_torch
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.miss import Miss


@pytest.fixture
def dispatcher() -> Dispatcher:
    made = Dispatcher(Catalog(entry_points=()))
    for op in ("softmax", "vector_add"):
        offered = getattr(registry_torch, f"{op}_implementations")()
        made.register(next(one for one in offered if one.name == "torch.native"))
    return made


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that were resolved from scratch."""
    seen: list[int] = []
    whole = Miss._first_that_runs

    def counting(self: Miss, asked: object, *given: object) -> object:
        seen.append(asked.tensors[0].shape[0])  # type: ignore[attr-defined]
        return whole(self, asked, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Miss, "_first_that_runs", counting)
    return seen


def right(dispatcher: Dispatcher, x: torch.Tensor) -> None:
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))


def test_only_the_first_size_is_resolved_from_scratch(dispatcher: Dispatcher, resolved: list[int]) -> None:
    for rows in (3, 4, 5, 1, 4097):
        right(dispatcher, torch.randn(rows, 33))
    assert resolved == [3]
    told = dispatcher.explain("softmax", torch.randn(5, 33))
    assert (told.step, told.implementation, told.calls) == ("default", "torch.native", 1)


def test_every_kind_of_call_is_a_family_of_its_own(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    right(dispatcher, torch.randn(3, 33, dtype=torch.float64))
    right(dispatcher, torch.randn(4, 2, 33))
    with torch.inference_mode():
        right(dispatcher, torch.randn(5, 33))
    assert resolved == [2, 3, 4, 5]


def test_strides_and_addresses_that_are_unusual_are_resolved_from_scratch(
    dispatcher: Dispatcher, resolved: list[int]
) -> None:
    right(dispatcher, torch.randn(2, 32))
    right(dispatcher, torch.randn(32, 3).t())
    right(dispatcher, torch.randn(1 + 4 * 32)[1:].view(4, 32))
    assert resolved == [2, 3, 4]


def test_states_of_torch_are_met_by_the_miss(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    with torch.autocast("cpu", torch.bfloat16):
        right(dispatcher, torch.randn(3, 33))
    with torch.device("cpu"):  # a TorchFunctionMode
        right(dispatcher, torch.randn(4, 33))
    x = torch.randn(5, 33, requires_grad=True)
    assert torch.autograd.grad(dispatcher.call("softmax", x)[:, 0].sum(), x)[0].abs().sum() > 0
    assert resolved == [2, 3, 4, 5, 5], "the last one is softmax_backward's"


def test_one_tensor_given_twice_is_met_by_the_miss(dispatcher: Dispatcher, resolved: list[int]) -> None:
    x, y = torch.randn(2, 33), torch.randn(2, 33)
    torch.testing.assert_close(dispatcher.call("vector_add", x, y), x + y)
    x = torch.randn(3, 33)
    torch.testing.assert_close(dispatcher.call("vector_add", x, x), x + x)
    assert resolved == [2, 3]


def test_a_nested_tensor_does_not_reach_the_guard(dispatcher: Dispatcher) -> None:
    right(dispatcher, torch.randn(2, 33))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    with pytest.raises(Exception, match=r"nested|dense|strided"):
        dispatcher.call("softmax", nested)


def test_wrong_arguments_are_told_as_ever(dispatcher: Dispatcher) -> None:
    right(dispatcher, torch.randn(2, 33))
    with pytest.raises(TypeError, match=r"3 positional arguments|dim"):
        dispatcher.call("softmax", torch.randn(3, 33), -1, 2)
    with pytest.raises(ValueError, match="dim=3 but x has 2 dimensions"):
        dispatcher.call("softmax", torch.randn(3, 33), dim=3)


def test_using_and_reconfiguring_are_obeyed_at_a_new_size(dispatcher: Dispatcher, resolved: list[int]) -> None:
    right(dispatcher, torch.randn(2, 33))
    with dispatcher.using(softmax="torch.native"):
        right(dispatcher, torch.randn(3, 33))
    dispatcher.configure(mode="reference")
    right(dispatcher, torch.randn(4, 33))
    assert dispatcher.explain("softmax", torch.randn(4, 33)).step == "reference"
    assert resolved == [2, 3, 4]

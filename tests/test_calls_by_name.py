"""A bound call inside a model: copied, pickled, and read back elsewhere."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import registry
import registry.calls
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher

from . import fresh
from .tiers import one_of_each


class Attention(torch.nn.Module):
    """Keeps the bound callable, as the hottest loops do."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = registry.op("softmax")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.softmax(x)
        assert isinstance(y, torch.Tensor)
        return y


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "gemm_int4", "vector_add"])
def test_it_is_pickled_as_a_reference(name: str) -> None:
    call = registry.op(name)
    data = pickle.dumps(call)
    assert len(data) < 200
    assert pickle.loads(data) is call
    assert copy.deepcopy(call) is call


def test_a_model_that_keeps_one_is_saved_and_copied() -> None:
    model, x = Attention(), torch.randn(3, 5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))


class Bound(torch.nn.Module):
    """Keeps ``registry.call`` for an op."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = partial(registry.call, "softmax", dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.softmax(x)
        assert isinstance(y, torch.Tensor)
        return y


@pytest.mark.parametrize("function", [registry.call, registry.op, registry.explain], ids=["call", "op", "explain"])
def test_the_functions_of_the_process_are_pickled_as_references(function: Callable[..., object]) -> None:
    data = pickle.dumps(function)
    assert len(data) < 200
    for other in (pickle.loads(data), copy.copy(function), copy.deepcopy(function)):
        assert other == function


def test_a_model_that_keeps_a_partial_call_is_saved_and_copied() -> None:
    model, x = Bound(), torch.randn(3, 5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        assert other.softmax.func == registry.call


@pytest.mark.parametrize(
    "call", one_of_each([registry.op("square"), partial(registry.call, "square")]), ids=["op", "call"]
)
def test_another_process_reads_it_back(call: Callable[..., object], tmp_path: Path) -> None:
    file = tmp_path / "call"
    file.write_bytes(pickle.dumps(call))
    code = f"import pickle, torch; print(pickle.load(open({str(file)!r}, 'rb'))(torch.tensor([3.0])).item())"
    done = fresh.run("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "9.0"), done.stderr


def test_the_call_of_another_dispatcher_is_not_mistaken_for_it() -> None:
    other = Dispatcher(Catalog())
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(other.op("softmax"))
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(pickle.PicklingError, match=r"only the dispatcher of registry\.call"):
            take(partial(other.call, "softmax"))


def test_an_op_that_nobody_has_is_named() -> None:
    misspelt = "sofamax"
    data = pickle.dumps(registry.op("softmax")).replace(b"softmax", misspelt.encode())
    with pytest.raises(AttributeError, match=r"sofamax.*registry\.calls"):
        pickle.loads(data)
    with pytest.raises(AttributeError, match="no op of that name is known here"):
        getattr(registry.calls, misspelt)

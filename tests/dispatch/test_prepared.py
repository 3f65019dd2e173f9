"""Prepared arguments: made once, remade when their source changes, dropped with it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from registry import Config, Device, Implementation, Problem
from registry.artifact import Built
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.prepared import prepared_bytes
from registry.errors import NotReadyError
from registry.implementation import Run


class Doubled(Implementation):
    """rms_norm over twice the weight, which is prepared."""

    op = "rms_norm"
    device_types = frozenset({"cpu"})

    def __init__(self, name: str, as_view: bool = False) -> None:
        self.name = name
        self.made = 0
        self._as_view = as_view

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        return {"doubled": ("weight",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        weight: torch.Tensor = values[0]
        self.made += weight.device.type != "meta"
        return weight.view(-1) if self._as_view else weight * 2

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        scale = 1 if self._as_view else 2

        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> None:
            x, _, eps, prepared = values
            outputs[0].copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], prepared / scale, eps))

        return run


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


@pytest.fixture
def doubled(dispatcher: Dispatcher) -> Doubled:
    implementation = Doubled("a.doubled")
    dispatcher.register(implementation)
    return implementation


def test_made_once_for_views_other_rows_and_forms(dispatcher: Dispatcher, doubled: Doubled) -> None:
    weight = torch.randn(8)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 8)
        for source in (weight, weight.detach(), weight.view(8)):
            torch.testing.assert_close(dispatcher.call("rms_norm", x, source), expected(x, weight))
    assert doubled.made == 1
    told = dispatcher.explain("rms_norm", torch.randn(3, 8), weight)
    assert told.prepared_bytes == 32
    assert "32 bytes of prepared arguments" in str(told)


def test_a_changed_weight_is_prepared_again(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    for _ in range(3):
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
        weight.detach().mul_(3)
    assert doubled.made == 3


def test_dropped_with_the_last_view_of_its_source(dispatcher: Dispatcher, doubled: Doubled) -> None:
    before = prepared_bytes()
    weight = torch.randn(8)
    view = weight[:]
    dispatcher.call("rms_norm", torch.randn(3, 8), weight)
    del weight
    gc.collect()
    assert prepared_bytes() == before + 32
    del view
    gc.collect()
    assert prepared_bytes() == before


def test_a_prepared_view_does_not_keep_its_source_alive(dispatcher: Dispatcher) -> None:
    dispatcher.register(Doubled("a.view", as_view=True))
    before = prepared_bytes()
    x, weight = torch.randn(3, 8), torch.randn(8)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    del weight
    gc.collect()
    assert prepared_bytes() == before


def test_many_weights_in_the_same_place_are_told_apart(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x = torch.randn(3, 8)
    for _ in range(50):
        weight = torch.randn(8)
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
        del weight


def test_inference_tensors_are_answered_by_something_else(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x = torch.randn(3, 8)
    with torch.inference_mode():
        weight = torch.randn(8)
        for _ in range(2):
            torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
            weight.mul_(2)
    assert doubled.made == 0


def test_a_plan_that_is_not_ready_on_a_hit_gives_way(dispatcher: Dispatcher, told: Any) -> None:
    moody = told("a.moody", 5.0)
    dispatcher.register(moody)
    dispatcher.register(told("a.steady"))
    x = torch.randn(4, 8)
    dispatcher.call("softmax", x)
    moody._behaviour["run_fault"] = NotReadyError("not now")
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    assert dispatcher.explain("softmax", x).implementation == "a.steady"

"""Weights that change behind torch's back are prepared again on demand, in the memory that a graph may read."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import registry
from registry import Config, Device, Implementation, Problem
from registry.artifact import Built
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans import prepared
from registry.dispatch.plans.prepared import prepared_bytes, weights_changed
from registry.errors import ArgumentTypeError, InvalidDefinitionError, NotReadyError
from registry.implementation import Run


class Doubled(Implementation):
    """rms_norm over twice the weight, which is prepared."""

    op = "rms_norm"
    name = "a.doubled"
    device_types = frozenset({"cpu"})
    source = "weight"

    def __init__(self, as_view: bool = False) -> None:
        self.read: list[torch.Tensor] = []
        self._as_view = as_view

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        return {"doubled": (self.source, "eps")}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        weight: torch.Tensor = values[0]
        return weight.view(-1) if self._as_view else weight * 2

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        scale = 1 if self._as_view else 2

        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> None:
            x, _, eps, doubled = values
            self.read = [doubled]
            outputs[0].copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], doubled / scale, eps))

        return run


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def through_data(weight: torch.Tensor) -> None:
    weight.data.copy_(torch.full_like(weight, 3.0))


def through_numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[:] = 3.0


def through_the_storage(weight: torch.Tensor) -> None:
    other = torch.full_like(weight, 3.0)
    weight.untyped_storage().copy_(other.untyped_storage())


def with_the_counter_preserved(weight: torch.Tensor) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):  # type: ignore[attr-defined]
        weight.fill_(3.0)


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("write", [through_data, through_numpy, through_the_storage, with_the_counter_preserved])
def test_what_torch_does_not_count_is_seen_after_weights_changed(
    dispatcher: Dispatcher, write: Callable[[torch.Tensor], None], as_view: bool
) -> None:
    implementation = Doubled(as_view)
    dispatcher.register(implementation)
    x, weight = torch.randn(3, 8), torch.nn.Parameter(torch.ones(8))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
        address, stale = implementation.read[0].data_ptr(), expected(x, weight)
        write(weight)
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), stale)
        assert weights_changed(weight) == 1
        # what a captured graph reads, without another call
        torch.testing.assert_close(implementation.read[0], torch.full((8,), 3.0 if as_view else 6.0))
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    assert implementation.read[0].data_ptr() == address


def test_a_view_stands_for_its_weight_and_strangers_count_nothing(dispatcher: Dispatcher) -> None:
    implementation = Doubled()
    dispatcher.register(implementation)
    x, whole = torch.randn(3, 8), torch.ones(2, 8)
    for row in whole:
        dispatcher.call("rms_norm", x, row)
    whole.data.fill_(2.0)
    assert weights_changed(torch.randn(8), x) == 0
    assert weights_changed() == 0
    assert weights_changed(whole.view(-1), whole[0]) == 2
    torch.testing.assert_close(dispatcher.call("rms_norm", x, whole[1]), expected(x, whole[1]))


def test_a_later_counted_change_is_still_seen(dispatcher: Dispatcher) -> None:
    dispatcher.register(Doubled())
    x, weight = torch.randn(3, 8), torch.ones(8)
    for change in (through_data, lambda weight: weight.mul_(5), through_data):
        dispatcher.call("rms_norm", x, weight)
        change(weight)
        weights_changed(weight)
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))


def test_what_a_graph_holds_of_a_former_plan_is_made_anew_too(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation = Doubled()
    dispatcher.register(implementation)
    x, weight = torch.randn(3, 8), torch.ones(8)
    dispatcher.call("rms_norm", x, weight)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_capturing", lambda tensor: True)
        prepared._CACHE.empty_records()
        dispatcher.call("rms_norm", x, weight)
        with pytest.raises(NotReadyError, match="a CUDA stream is capturing"):
            weights_changed(weight)
    (read_by_a_graph,) = implementation.read
    dispatcher.forget()
    through_data(weight)
    assert weights_changed(weight) == 1
    torch.testing.assert_close(read_by_a_graph, torch.full((8,), 6.0))


def test_a_weight_whose_memory_was_freed_is_left_and_dies_with_its_storage(dispatcher: Dispatcher) -> None:
    dispatcher.register(Doubled())
    before = prepared_bytes()
    x, weight = torch.randn(3, 8), torch.ones(8)
    dispatcher.call("rms_norm", x, weight)
    weight.untyped_storage().resize_(0)
    assert weights_changed(weight) == 0
    weight.untyped_storage().resize_(32)
    weight.data.fill_(7.0)
    assert weights_changed(weight) == 1
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    del weight
    gc.collect()
    assert prepared_bytes() == before


def test_a_packed_weight_is_taken_and_anything_else_refused() -> None:
    packed = registry.quantize(torch.randn(128, 64), bits=4, group_size=64)
    assert registry.weights_changed(packed) == 0
    assert registry.weights_changed(registry.sparsify24(torch.randn(8, 64))) == 0
    with pytest.raises(ArgumentTypeError, match=r"weights_changed: got Linear.*\n.*parameters\(\)"):
        registry.weights_changed(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_what_is_no_weight_of_the_op_is_not_prepared(dispatcher: Dispatcher) -> None:
    class OfX(Doubled):
        source = "x"

    class OfNothing(Doubled):
        source = "wieght"

    x, weight = torch.randn(3, 8), torch.ones(8)
    for wrong, message in (
        (OfX(), r"rms_norm: a.doubled prepares 'doubled' from 'x', which is no weight of the op .its weights: weight"),
        (OfNothing(), r"a.doubled prepares 'doubled' from 'wieght': unknown argument 'wieght'\n.*did you mean weight"),
    ):
        one = Dispatcher(dispatcher.catalog.__class__(entry_points=()))
        one.register(wrong)
        with one.using(rms_norm="a.doubled"), pytest.raises(InvalidDefinitionError, match=message):
            one.call("rms_norm", x, weight)


def test_an_op_names_weights_that_it_has() -> None:
    from dataclasses import replace

    from registry.contracts.norm import RMS_NORM

    with pytest.raises(InvalidDefinitionError, match=r"weights: unknown tensor 'wheight'\n.*did you mean weight"):
        replace(RMS_NORM, weights=frozenset({"wheight"}))

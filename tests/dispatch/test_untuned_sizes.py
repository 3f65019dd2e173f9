"""Sizes that nobody tuned, near a winner that is compiled for its size: no caller waits for a compilation each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry import Device
from registry.artifact import Signature
from registry.backends.inductor import InductorImplementation
from registry.backends.inductor import sizes as inductor_sizes
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import NotReadyError
from tuning_db import Decision


class Compiled(InductorImplementation):
    """softmax by torch.compile."""

    op, name = "softmax", "mine.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``(x, dim)``."""
        x, dim = values
        return torch.softmax(x, dim)


@pytest.fixture
def tuned(dispatcher: Dispatcher, publish: Callable[..., Decision]) -> Dispatcher:
    implementation = Compiled()
    dispatcher.register(implementation)
    publish(
        {"rows": 64, "cols": 48, "dtype": "float32"}, implementation.name, {}, fingerprint=implementation.fingerprint()
    )
    return dispatcher


@pytest.mark.thorough
def test_the_tuned_size_has_a_kernel_of_its_own_and_other_sizes_do_not_take_its_winner(
    tuned: Dispatcher, told: Any
) -> None:
    plain = told("a.plain")
    tuned.register(plain)
    for rows, step, name in ((64, "exact", "mine.compile"), (70, "default", "a.plain"), (64, "exact", "mine.compile")):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(tuned.call("softmax", x), torch.softmax(x, -1))
        story = tuned.explain("softmax", x)
        assert (story.step, story.implementation) == (step, name)
    (miss,) = tuned.explain("softmax", torch.randn(70, 48)).misses
    assert miss == (
        "winner of rows=64: mine.compile is made for each size, so that its time there says nothing about this one"
    )


@pytest.mark.thorough
def test_what_can_nothing_but_compile_compiles_once_for_all_other_sizes(
    tuned: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_one, compile_any = Compiled.compile, torch.compile

    def one(*given: Any) -> Any:
        compiled.append("one")
        return compile_one(*given)

    def for_any(*given: Any, **how: Any) -> Any:
        compiled.append("any")
        return compile_any(*given, **how)

    monkeypatch.setattr(Compiled, "compile", one)
    monkeypatch.setattr(torch, "compile", for_any)
    for rows, step in ((64, "exact"), (70, "default"), (71, "default"), (90, "default"), (64, "exact")):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(tuned.call("softmax", x), torch.softmax(x, -1))
        told = tuned.explain("softmax", x)
        assert (told.step, told.implementation) == (step, "mine.compile")
    assert compiled == ["one", "any"]


def test_a_capture_does_not_wait_for_a_compilation(tuned: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    op, device = tuned.catalog.op("softmax"), Device.of("cpu")
    values = torch.randn(70, 48), -1
    arguments = op.arguments(values)
    signature = Signature(arguments, op.output_specs(arguments, torch.device("cpu")))
    run = Compiled().bind_untuned(op.pose(arguments), {}, device, signature, ())
    assert run is not None
    monkeypatch.setattr(inductor_sizes, "_capturing", lambda: True)
    with pytest.raises(NotReadyError, match="compiles at the first call"):
        run((), values, ())
    monkeypatch.undo()
    torch.testing.assert_close(run((), values, ()), torch.softmax(*values))
    monkeypatch.setattr(inductor_sizes, "_capturing", lambda: True)
    torch.testing.assert_close(run((), values, ()), torch.softmax(*values))

"""What takes part in tuning one problem: a fault in an implementation's own answers takes only itself out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from registry.artifact import Built
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config
from registry.tuner.planning.problems import plan

CPU = Device.of("cpu")
PROBLEM = Problem("square", {"n": 1000, "dtype": "float32"})


class Anything(Implementation):
    """Runs nothing: planning only asks."""

    op = "square"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise NotImplementedError


def raising(*_: Any) -> Any:
    raise LookupError("no such table")


@pytest.mark.parametrize("method", ["unsupported", "space", "default", "preference"])
def test_an_implementation_that_raises_when_it_is_asked_is_out_with_the_reason(catalog: Catalog, method: str) -> None:
    class Faulty(Anything):
        name = "test.faulty"

    setattr(Faulty, method, raising)
    catalog.register(Faulty())
    (planned,) = plan([PROBLEM], catalog, CPU)
    (choice,) = [choice for choice in planned.choices if choice.implementation.name == "test.faulty"]
    (reason,) = choice.unsupported
    assert reason.startswith(f"test.faulty: {method}() raised LookupError: no such table (")
    assert "test_problems.py:" in reason
    assert "test.faulty" not in [candidate.implementation.name for candidate in planned.defaults()]
    assert planned.defaults()


@pytest.mark.parametrize("answer", [None, "high", float("nan")], ids=str)
def test_a_preference_that_is_no_finite_number_takes_its_implementation_out(catalog: Catalog, answer: Any) -> None:
    class Faulty(Anything):
        name = "test.faulty"
        preference: Callable[..., Any] = lambda *_: answer

    catalog.register(Faulty())
    (planned,) = plan([PROBLEM], catalog, CPU)
    (choice,) = [choice for choice in planned.choices if choice.implementation.name == "test.faulty"]
    assert "preference() returned" in choice.unsupported[0]
    assert planned.defaults()


def test_defaults_come_by_preference(catalog: Catalog) -> None:
    def preferring(number: float) -> type[Implementation]:
        class Preferred(Anything):
            name = f"test.p{number:g}"
            preference: Callable[..., float] = lambda *_: number

        return Preferred

    for number in (900.0, 1000.0):
        catalog.register(preferring(number)())
    (planned,) = plan([PROBLEM], catalog, CPU)
    assert [candidate.implementation.name for candidate in planned.defaults()][:2] == ["test.p1000", "test.p900"]

"""Other code or other defaults of a function are found, wherever the function is wrapped, and put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.tuner.workers import function_bodies
from registry.tuner.workers.function_bodies import FunctionBodies


def _plain(one: int = 1, *, other: int = 2) -> int:
    return one + other


def _zero(one: int = 1, *, other: int = 2) -> int:
    return 0


@pytest.fixture(params=[True, False], ids=["by_memory", "one_by_one"])
def bodies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FunctionBodies:
    if not request.param:
        monkeypatch.setattr(function_bodies, "OFFSET", 0)
    return FunctionBodies()


def test_code_is_found_in_memory() -> None:
    assert function_bodies.OFFSET > 0


_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "function": lambda function: function,
    "property": property,
    "static": staticmethod,
    "class": classmethod,
    "cached": functools.cached_property,
    "partial": functools.partial,
    "cache": functools.lru_cache,
    "decorated": lambda function: functools.wraps(function)(lambda: None),
}


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_other_code_is_found_in_each_wrapper(bodies: FunctionBodies, wrapper: str) -> None:
    def function(one: int = 1, *, other: int = 2) -> int:
        return one + other

    bodies.watch("watched", _WRAPPERS[wrapper](function))
    assert list(bodies.restore()) == []
    given = _zero.__code__
    function.__code__ = given
    assert list(bodies.restore()) == [("watched", given)]
    assert _plain() == function(1, other=2) == 3
    assert list(bodies.restore()) == []


@pytest.mark.parametrize(("name", "value"), [("__defaults__", (5,)), ("__kwdefaults__", {"other": 5})])
def test_other_defaults_are_found(bodies: FunctionBodies, name: str, value: object) -> None:
    bodies.watch("plain", _plain)
    assert list(bodies.restore()) == []
    setattr(_plain, name, value)
    assert [name for name, _ in bodies.restore()] == ["plain"]
    assert _plain() == 3


def test_what_has_no_code_of_python_is_left(bodies: FunctionBodies) -> None:
    for value in (len, int, 3, property(), torch.nn):
        bodies.watch("builtin", value)
    assert list(bodies.restore()) == []

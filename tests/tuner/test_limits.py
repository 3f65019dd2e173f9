"""Limits of steps and memory."""

from __future__ import annotations

import pytest

from registry.errors import InvalidArgumentError
from registry.tuner.limits import Limits, usable_memory_bytes


def test_every_step_that_a_child_announces_has_a_limit() -> None:
    limits = Limits(start=1, compile=2, wait=3, load=4, verify=5, measure=6)
    steps = ("start", "compile", "wait", "load", "verify", "measure")
    assert [limits.seconds(step) for step in steps] == [1, 2, 3, 4, 5, 6]
    assert limits.seconds("something new") == 1
    assert limits.seconds("memory_bytes") == 1


def test_memory_is_limited_below_what_there_is() -> None:
    assert 0 < Limits().memory < usable_memory_bytes()
    assert Limits(memory_bytes=123).memory == 123


@pytest.mark.parametrize("fields", [{"verify": 0}, {"measure": -1.0}, {"memory_bytes": 0}])
def test_a_limit_that_nothing_could_keep_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(fields))):
        Limits(**fields)  # type: ignore[arg-type]

"""Whoever returns more buffers in turn than are held at once, or skips calls that are hardly judged, is refused."""

from __future__ import annotations

import math

import pytest

from registry.problem import Problem

from ...tiers import THOROUGH
from .trials import Trials

SMALL = Problem("square", {"n": 20_002, "dtype": "float32"})
LARGE = Problem("square", {"n": 200_002, "dtype": "float32"})
"""Of which few outputs with their inputs can be kept to be judged in float64."""
RINGS = ("buffers", "views")
TOLD = ("return the same memory", "its second run")


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials("cheats_with_rings.py")


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("problem", [SMALL, pytest.param(LARGE, marks=THOROUGH)], ids=["small", "large"])
def test_a_ring_of_buffers_comes_round(trials: Trials, name: str, problem: Problem) -> None:
    found = trials.of(f"ring.{name}", problem)
    assert found.status == "wrong_result", found.message
    assert any(words in found.message for words in TOLD), found.message


@pytest.mark.parametrize("name", ["large", pytest.param("storages", marks=THOROUGH)])
@pytest.mark.parametrize("problem", [SMALL, LARGE], ids=["small", "large"])
def test_whoever_owns_what_it_has_returned_is_refused_before_its_ring_comes_round(
    trials: Trials, name: str, problem: Problem
) -> None:
    found = trials.of(f"ring.{name}", problem)
    assert (found.status, "it keeps memory that it has returned" in found.message) == ("wrong_result", True), (
        found.message
    )


def test_a_ring_of_memory_that_another_library_owns_comes_round(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine must not end the calls before
    monkeypatch.setattr("registry.tuner.verify.timed._OTHERS_CALLS_S", 60.0)
    found = trials.of("ring.many_views", LARGE)
    assert found.status == "wrong_result", found.message
    assert any(words in found.message for words in TOLD), found.message


def test_whoever_skips_a_call_in_three_on_inputs_it_never_met_is_refused(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    # other work on the machine may leave time for few samples, or to judge few: then it is tried again
    monkeypatch.setattr("registry.tuner.verify.between_samples._MOST_S", math.inf)
    outcomes = (trials.of("ring.seldom", LARGE, seed) for seed in range(4))
    found = next((each for each in outcomes if each.status != "ok"), None)
    assert found is not None
    assert (found.status, "a sample left a wrong output" in found.message) == ("wrong_result", True), found.message


@pytest.mark.parametrize("name", ["function", "honest", "latest"])
def test_the_honest_are_accepted(trials: Trials, name: str) -> None:
    found = trials.of(f"ring.{name}", SMALL)
    assert found.status == "ok", found.message

"""In a hot cache, too, no launch finds its work done by the one before: whoever trusts in that gains nothing."""

from __future__ import annotations

import pytest

from registry.problem import Problem

from .trials import Trials

PROBLEMS = [Problem("square", {"n": 20_002, "dtype": "float32"}), Problem("square", {"n": 400_002, "dtype": "float32"})]
"""Of the first several copies stay in the cache, of the second one alone does."""


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials("cheats_while_hot.py", regime="hot")


@pytest.mark.parametrize("problem", PROBLEMS, ids=["small", "large"])
def test_whoever_works_once_a_round_finds_no_work_done(trials: Trials, problem: Problem) -> None:
    calls = trials.module_of("hot.once").CALLS
    calls.clear()
    found = trials.of("hot.once", problem)
    if found.status != "ok":
        # the clock is read so quickly that it took two rounds for one
        assert (found.status, "a sample left a wrong output" in found.message) == ("wrong_result", True), found.message
    else:
        assert 2 * calls["skipped"] < calls["all"]


@pytest.mark.parametrize("problem", PROBLEMS, ids=["small", "large"])
def test_the_honest_are_accepted(trials: Trials, problem: Problem) -> None:
    found = trials.of("hot.honest", problem)
    assert found.status == "ok", found.message

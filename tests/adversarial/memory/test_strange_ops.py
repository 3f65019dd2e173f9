"""Integers of which an op tells nothing change all together: whoever remembers what it made of them is refused."""

from __future__ import annotations

import pytest

from registry.problem import Problem

from ...tiers import THOROUGH
from .trials import Trials

N = 5_002
TOLD = "times as long on integers that it has not met before"


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials("cheats_with_strange_ops.py")


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("placed", "placed_known"),
        pytest.param("placed", "placed_first", marks=THOROUGH),
        ("ranked", "ranked_known"),
    ],
)
def test_whoever_remembers_integers_is_refused(trials: Trials, op: str, name: str) -> None:
    found = trials.of(f"strange.{name}", Problem(f"strange::{op}", {"n": N}))
    assert (found.status, TOLD in found.message) == ("wrong_result", True), found.message


@pytest.mark.parametrize("op", ["placed", "ranked", "sort"])
def test_whoever_reads_them_in_each_call_is_accepted(trials: Trials, op: str) -> None:
    found = trials.of(f"strange.{op}", Problem(f"strange::{op}", {"n": N}))
    assert found.status == "ok", found.message


def test_integers_that_a_launch_mutates_are_written_anew_before_each_sample(trials: Trials) -> None:
    calls = trials.module_of("strange.sort_again", "strange::sort").CALLS
    calls.clear()
    # short enough that most calls are timed
    found = trials.of("strange.sort_again", Problem("strange::sort", {"n": 300}))
    assert found.status == "ok", found.message
    assert 4 * calls["skipped"] < calls["all"]

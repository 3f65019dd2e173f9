"""Whoever returns before all of its output is there is refused, also where only a part of the last call's is late."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pytest

from registry.problem import Problem

from .cheating_run import CheatingRun, asked_again, each_of, left_out

PROBLEMS = (Problem("square", {"n": 20_002, "dtype": "float32"}),)
REFUSED = ("half", "middle", "whole", "function", "function_middle")
REPEATED = ("middle", "whole", "function_middle")
"""Those that leave another part."""
RIGHT = ("honest", "honest_function")
TOLD = ("a sample left a wrong output", "a sample's output changed after its time", "after timing, ")


def tuned(tmp_path_factory: pytest.TempPathFactory, without: Collection[str]) -> CheatingRun:
    folder = tmp_path_factory.mktemp("late")
    return CheatingRun("cheats_that_are_late.py", "late", PROBLEMS, folder, left_out=without)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    return tuned(tmp_path_factory, left_out(request, REPEATED))


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_whoever_leaves_a_part_for_later_is_refused(
    run: CheatingRun, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # who checks may have been kept waiting until all was there
    run = asked_again(run, name, partial(tuned, tmp_path_factory))
    trial = run.trials[name]
    if run.was_given_up(name):
        assert name not in run.winners.values()
        return
    # memory that a function returns too early may hold an earlier result, be it of other inputs
    assert trial.status == "wrong_result" or (name.startswith("function") and trial.status == "nondeterministic")
    assert any(words in trial.message for words in TOLD), trial.message


def test_the_honest_are_accepted_and_win(run: CheatingRun) -> None:
    assert [run.trials[name].message for name in RIGHT if run.trials[name].status != "ok"] == []
    assert set(run.winners.values()) <= set(RIGHT)


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *RIGHT}

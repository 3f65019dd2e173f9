"""Whoever leaves out work on arguments that it should mutate, while it is timed, is refused."""

from __future__ import annotations

import pytest

from registry.problem import Problem

from .cheating_run import CheatingRun, each_of, left_out

PROBLEMS = (Problem("fused_add_rms_norm", {"rows": 4, "cols": 4096, "weight": True, "dtype": "float32"}),)
REFUSED = ("collection", "callers", "residual", "every_other", "after_a_pause")
WITHOUT_COLLECTION = ("collection", "every_other", "after_a_pause")
"""They do so while Python collects no garbage."""
REPEATED = ("callers",)
"""It does what another does, in another way."""
RIGHT_BUT_SLOW = ("as_last_time",)
"""What it looks at is never as it was."""


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    folder, without = tmp_path_factory.mktemp("mutates"), left_out(request, REPEATED)
    return CheatingRun("cheats_that_mutate.py", "mutate", PROBLEMS, folder, left_out=without)


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_whoever_leaves_work_out_while_it_is_timed_is_refused(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    if name in {"residual", "every_other", "after_a_pause"} and run.was_left_to_finals(name):
        assert name not in run.winners.values()
        return
    assert trial.status == "wrong_result", trial.message
    # calls one by one after timing are made without the collection of garbage, too
    ways = ("a sample left a wrong output", *(("after timing: ",) if name in WITHOUT_COLLECTION else ()))
    assert any(way in trial.message for way in ways), trial.message


def test_the_honest_one_is_accepted_and_wins(run: CheatingRun) -> None:
    assert run.trials["honest"].status == "ok", run.trials["honest"].message
    assert run.winners == {"fused_add_rms_norm": "honest"}


@pytest.mark.parametrize("name", RIGHT_BUT_SLOW)
def test_what_skips_only_arguments_that_it_knows_never_meets_them(run: CheatingRun, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *RIGHT_BUT_SLOW, "honest"}

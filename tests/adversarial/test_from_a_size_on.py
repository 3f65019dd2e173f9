"""Whoever is wrong in calls of a kind that is not timed, and only where these are large, is refused all the same."""

from __future__ import annotations

import pytest

from registry.problem import Problem

from .cheating_run import CheatingRun, each_of, left_out

PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("gelu", {"n": 16_002, "dtype": "float32", "approximate": "none"}),
    Problem("vector_add", {"n": 16_002, "dtype": "float32"}),
    Problem("softmax", {"rows": 20, "cols": 1_000, "dtype": "float32"}),
)
RIGHT = ("honest", "gelu", "add", "softmax")
REFUSED = {
    "workspace": "called by two threads at once",
    "workspace_beyond": "called by two threads at once",
    "borrowed_input": "called by two threads at once",
    "static": "called by two threads at once",
    "vectors": "not for square(n=20480,",
    "whole_tiles": "not for square(n=20480,",
    "raises": "sixteens were not thought of",
    "overflows_beyond": "rows=60, cols=1000, dtype=float32) with ",
    "overflows_below": ", cols=1000, dtype=float32) with ",
    "reads_beyond": "is nan, expected",
    "strided_workspace": "called by two threads at once",
    "unaligned": "with unaligned inputs",
    "first_strides": "with dense-strided inputs",
    "second_strides": "with strided-dense inputs",
    "strides_beyond": "n=32004, dtype=float32) with dense-strided inputs",
    "sliced": "with sliced inputs",
}
AT_THEIR_OWN_SIZE = ("strided_workspace", "unaligned", "first_strides", "second_strides")
"""Those of ``REFUSED`` that are wrong in other calls of the tuned size alone."""
REPEATED = (
    "workspace_beyond", "borrowed_input", "static", "strided_workspace", "overflows_below", "second_strides",
    "strides_beyond",
)  # fmt: skip
"""Those that do what another does, in another way."""


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    folder, without = tmp_path_factory.mktemp("large"), left_out(request, REPEATED)
    return CheatingRun("cheats_from_a_size_on.py", "large", PROBLEMS, folder, left_out=without)


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_the_tuner_refuses_whoever_is_wrong_in_another_call_of_a_large_size(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    if run.was_left_to_finals(name) if name in AT_THEIR_OWN_SIZE else run.was_given_up(name):
        assert name not in run.winners.values()
        return
    assert trial.status == ("error" if name == "raises" else "wrong_result"), trial.message
    assert REFUSED[name] in trial.message


def test_their_honest_peers_are_accepted_and_win(run: CheatingRun) -> None:
    assert [run.trials[name].message for name in RIGHT if run.trials[name].status != "ok"] == []
    # a busy machine may disturb finals, which then decide nothing
    won = [result.implementation.partition(".")[2] for result in run.results if not result.reason]
    assert set(won) <= set(RIGHT)


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *RIGHT}
    assert not all(run.was_left_to_finals(name) for name in AT_THEIR_OWN_SIZE if name not in run.left_out)

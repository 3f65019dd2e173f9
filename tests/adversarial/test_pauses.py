"""Whoever measures the pause before a call, and works less after one that timed calls come after, is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from registry.problem import Problem

from .cheating_run import CheatingRun, each_of, left_out
from .cheats_by_pauses import N

pytestmark = pytest.mark.thorough

PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("gelu", {"n": N, "dtype": "float32", "approximate": "tanh"}),
)
REFUSED = ("remembers", "works_after", "works_after_long", "works_at_first")
REPEATED = ("works_after", "works_at_first")
"""They do what another does, in another way."""
RIGHT = ("honest", "precise")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], CheatingRun]:
    """Makes the run anew."""
    without = left_out(request, REPEATED)
    return lambda: CheatingRun(
        "cheats_by_pauses.py", "pause", PROBLEMS, tmp_path_factory.mktemp("pauses"), left_out=without
    )


@pytest.fixture(scope="module")
def run(runs: Callable[[], CheatingRun]) -> CheatingRun:
    return runs()


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_whoever_goes_by_the_pause_before_a_call_is_refused(
    run: CheatingRun, runs: Callable[[], CheatingRun], name: str
) -> None:
    for _ in range(2):
        has_not_won = name == "remembers" and name not in run.winners.values()
        if run.trials[name].status != "ok" or run.was_left_to_finals(name) or has_not_won:
            break
        # on a busy machine pauses are of any length, which tell it nothing
        run = runs()
    trial = run.trials[name]
    if run.was_left_to_finals(name) or (name == "remembers" and trial.status == "ok"):
        assert name not in run.winners.values()
        return
    assert trial.status == "wrong_result", trial.message
    if name == "remembers":
        assert "as long after a pause as after none" in trial.message or "not met before" in trial.message


@pytest.mark.parametrize("name", RIGHT)
def test_the_honest_are_accepted_and_win(run: CheatingRun, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message
    assert name in run.winners.values()


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *RIGHT}

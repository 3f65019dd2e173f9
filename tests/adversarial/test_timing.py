"""Whoever works less where it is timed than where it is checked is refused, or gains nothing by it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pytest

from registry.problem import Problem
from registry.tuner.events import Note

from .cheating_run import CheatingRun, asked_again, each_of, left_out
from .cheats_in_timing import FEW
from .cheats_that_remember import N as REMEMBERED

PROBLEMS = (
    *(Problem("square", {"n": n, "dtype": "float32"}) for n in (20_002, FEW)),
    Problem("gelu", {"n": 20_002, "dtype": "float32", "approximate": "none"}),
    Problem("gelu", {"n": REMEMBERED, "dtype": "float32", "approximate": "tanh"}),
)
REFUSED = (
    "peeks",
    "peeks_elsewhere",
    "peeks_at_inputs",
    "peeks_at_outputs",
    "objects",
    "versions",
    "collection",
    "callers",
    "one_in_three",
    "in_a_row",
    "some_calls",
    "thread",
)
SOMETIMES_LATER = ("callers", "one_in_three", "thread", "peeks_elsewhere")
"""They do their work in the first calls, or whenever a chance says so. Other work on the machine may have made calls so
slow that few samples or none were taken: such a trial is ``ok``, but must not win."""
REMEMBERS = (
    "incremental",
    "incremental_function",
    "new_inputs",
    "storage_version",
    "object",
    "object_ends",
    "attribute",
    "subset",
)
RIGHT = ("honest", "gelu", "precise", "precise_function")
RIGHT_BUT_SLOW = ("all_of_it", "moved")
"""They remember whole inputs, none of which comes again, nor do their elements at other places."""
SLOW_OR_REFUSED = ("checksum", "incremental_for_a_while", "incremental_anywhere")
"""A sum does not tell in which order elements come, which may be found; inputs that were never met may take longer."""
HONEST = {
    ("square", 20_002): {"honest"},
    ("square", FEW): {"honest"},
    ("gelu", 20_002): {"gelu"},
    ("gelu", REMEMBERED): {"precise", "precise_function"},
}
"""Who may win, by op and size of the problem."""
REPEATED = (
    "peeks_elsewhere", "peeks_at_inputs", "versions", "in_a_row", "incremental_function", "new_inputs",
    "storage_version", "object_ends", "attribute", "checksum", "incremental_for_a_while", "incremental_anywhere",
    "precise_function",
)  # fmt: skip
"""Those that do what another does, in another way."""


def tuned(tmp_path_factory: pytest.TempPathFactory, without: Collection[str]) -> CheatingRun:
    folder = tmp_path_factory.mktemp("timing")
    return CheatingRun(
        "cheats_in_timing.py", "timing", PROBLEMS, folder, "cheats_that_remember.py", left_out=without
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    return tuned(tmp_path_factory, left_out(request, REPEATED))


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_whoever_skips_work_while_it_is_timed_is_refused(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    if name in SOMETIMES_LATER and trial.status == "ok":
        assert name not in run.winners.values()
    else:
        assert trial.status == "wrong_result", trial.message


@pytest.mark.parametrize("name", each_of(REMEMBERS, REPEATED))
def test_whoever_computes_only_what_is_new_is_refused(
    run: CheatingRun, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # known inputs may have taken as long as new ones
    run = asked_again(run, name, partial(tuned, tmp_path_factory))
    trial = run.trials[name]
    if run.was_given_up(name):
        assert name not in {result.implementation.partition(".")[2] for result in run.results}
        return
    assert trial.status == "wrong_result", trial.message
    if name.startswith("incremental"):
        assert "times as long on inputs that it has not met before" in trial.message


@pytest.mark.parametrize("name", each_of([*RIGHT, *RIGHT_BUT_SLOW, "finals"], REPEATED))
def test_what_is_right_in_the_search_is_not_refused_there(run: CheatingRun, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message


def test_who_cheats_in_the_finals_alone_is_found_there(run: CheatingRun) -> None:
    told = [event.message for event in run.events if isinstance(event, Note) and "timing.finals" in event.message]
    assert told
    assert all("is out of finals block" in message and "wrong_result" in message for message in told)


def test_only_the_honest_win(run: CheatingRun) -> None:
    # one result for each problem, but not in their order: finalists that were found wrong cost a problem further finals
    found = {(result.problem.op, result.problem.n): result for result in run.results}
    assert found.keys() == {(problem.op, problem.n) for problem in PROBLEMS}
    # a busy machine may disturb finals, which then decide nothing
    won = {at: one.implementation.partition(".")[2] for at, one in found.items() if not one.reason}
    assert {one.reason.partition(":")[0] for one in found.values()} <= {"", "undecided"}
    assert won, found
    assert all(won[at] in HONEST[at] for at in won), won


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    others = {*RIGHT, *RIGHT_BUT_SLOW, *SLOW_OR_REFUSED, "finals"}
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *REMEMBERS, *others}

"""Whoever works less where it is timed than where it is checked is refused, or gains nothing by it."""

from __future__ import annotations

import pytest

from registry.problem import Problem
from registry.tuner.events import Note

from .cheating_run import CheatingRun
from .cheats_in_timing import FEW

PROBLEMS = (
    *(Problem("square", {"n": n, "dtype": "float32"}) for n in (20_002, FEW)),
    Problem("gelu", {"n": 20_002, "dtype": "float32", "approximate": "none"}),
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
    "in_a_row",
    "some_calls",
    "thread",
)
SOMETIMES_LATER = ("callers", "thread")
"""They do their work in the first calls. Other work on the machine may have made those so slow that no sample was
taken: such a trial is ``ok``, but must not win."""
RIGHT = ("honest", "gelu")
RIGHT_BUT_SLOW = ("all_of_it", "checksum")
"""They remember whole inputs, none of which comes again."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    return CheatingRun("cheats_in_timing.py", "timing", PROBLEMS, tmp_path_factory.mktemp("timing"))


@pytest.mark.parametrize("name", REFUSED)
def test_whoever_skips_work_while_it_is_timed_is_refused(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    if name in SOMETIMES_LATER and trial.status == "ok":
        assert name not in run.winners.values()
    else:
        assert trial.status == "wrong_result", trial.message


@pytest.mark.parametrize("name", [*RIGHT, *RIGHT_BUT_SLOW, "finals"])
def test_what_is_right_in_the_search_is_not_refused_there(run: CheatingRun, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message


def test_who_cheats_in_the_finals_alone_is_found_there(run: CheatingRun) -> None:
    told = [event.message for event in run.events if isinstance(event, Note) and "timing.finals" in event.message]
    assert told
    assert all("is out of finals block" in message and "wrong_result" in message for message in told)


def test_only_the_honest_win(run: CheatingRun) -> None:
    assert run.winners == {"square": "honest", "gelu": "gelu"}
    assert {result.implementation for result in run.results if result.problem.op == "square"} == {"timing.honest"}


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() == {*REFUSED, *RIGHT, *RIGHT_BUT_SLOW, "finals"}

"""What is told of problems that a run skips."""

from __future__ import annotations

from registry.problem import Problem
from registry.tuner.events import Note, ProblemSkipped
from registry.tuner.skipped import SkippedProblems

PROBLEMS = [Problem("square", {"n": n}) for n in (1, 2, 3)]


def test_each_reason_is_told_once_with_an_example_and_a_count() -> None:
    skipped = SkippedProblems()
    assert list(skipped.texts()) == []
    for event in (
        ProblemSkipped(PROBLEMS[0], "no implementation supports it"),
        Note("the machine is slow"),
        ProblemSkipped(PROBLEMS[1], "no implementation supports it"),
        ProblemSkipped(PROBLEMS[2], "needs 99 GiB"),
    ):
        skipped(event)
    assert list(skipped.texts()) == [
        "tune: square(n=1), and 1 more of square, skipped: no implementation supports it",
        "tune: square(n=3) skipped: needs 99 GiB",
    ]

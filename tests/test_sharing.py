"""Tests go to processes by what they share, and what is named for that is there."""

from __future__ import annotations

from pathlib import Path

from .sharing import LONG, TOGETHER, group_of, place_of

ROOT = Path(__file__).parents[1]


def test_what_goes_together_and_what_is_long_is_there() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in Path(__file__).parent.rglob("test_*.py")]
    for start in (*LONG, *(start for starts in TOGETHER.values() for start in starts)):
        assert any(file.startswith(start) for file in files), start


def test_groups_come_first_then_long_files_and_the_rest_by_files() -> None:
    several = ["tests/backends/test_estimate.py::test_a", "tests/tuner/test_run.py::test_b[tests/cli/]"]
    alone = ["tests/test_example_acme.py::test_c", "tests/test_names.py::test_d"]
    assert [group_of(nodeid) for nodeid in (*several, *alone)] == [
        "compilers", "tuner", "tests/test_example_acme.py", "tests/test_names.py",
    ]  # fmt: skip
    assert sorted([*reversed(alone), *reversed(several)], key=place_of) == [*several, *alone]

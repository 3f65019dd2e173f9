"""The tests of a GPU run in rounds, each file in one, and a second call runs what has not passed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .gpu.reports import VARIABLE, outcomes
from .gpu.rounds import main, rounds

ROOT = Path(__file__).parents[1]
TESTS = """
import os, pytest
def test_passes(): pass
def test_skips(): pytest.skip("not here")
def test_fails(): assert os.environ.get("MENDED"), "seven is not eight"
@pytest.fixture
def left(): yield; assert os.environ.get("MENDED"), "left behind"
def test_leaves(left): pass
"""


def run(folder: Path, reports: Path, *options: str, **variables: str) -> str:
    """Run pytest on the folder; returns what it printed."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.gpu.reports", *options, "."]
    env = os.environ | {VARIABLE: str(reports), "PYTHONPATH": paths, "PYTEST_ADDOPTS": ""} | variables
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.thorough)])
def test_a_second_call_runs_what_failed_and_nothing_else(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    reports = tmp_path / "reports.jsonl"
    run(tmp_path, reports, *workers)
    told = {name.partition("::")[2]: one for name, one in outcomes(reports).items()}
    assert {name: one.outcome for name, one in told.items()} == {
        "test_passes": "passed",
        "test_skips": "skipped",
        "test_fails": "failed",
        "test_leaves": "failed",
    }
    assert "seven is not eight" in told["test_fails"].why
    assert "left behind" in told["test_leaves"].why
    assert "2 passed" in run(tmp_path, reports, *workers, MENDED="1")
    assert {one.outcome for one in outcomes(reports).values()} == {"passed", "skipped"}


def test_a_line_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    reports.write_text('{"test": "a", "outcome": "passed", "seconds": 1.0, "why": ""}\n{"test": "b", "outc')
    assert outcomes(reports).keys() == {"a"}


def test_every_file_is_in_one_round_and_each_name_is_a_file() -> None:
    counts = Counter(name for one in rounds().values() for name in one.files)
    assert counts == Counter(file.stem.removeprefix("test_") for file in (ROOT / "tests" / "gpu").glob("test_*.py"))


def test_a_round_that_is_not_there_is_told_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["model"])
    assert "no round model: there are adversarial, isolation" in capsys.readouterr().err

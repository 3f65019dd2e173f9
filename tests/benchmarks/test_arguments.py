"""Where results go exists before anything is measured, or the benchmark says at once that it cannot."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.arguments import folder, output_file, output_folder


def test_folders_that_are_missing_are_made(tmp_path: Path) -> None:
    assert output_folder(str(tmp_path / "one" / "two")).is_dir()
    assert output_folder(str(tmp_path / "one" / "two")).is_dir(), "one that is there is taken as it is"
    wanted = output_file(str(tmp_path / "three" / "results.json"))
    assert wanted.parent.is_dir()
    assert not wanted.exists()


def test_what_cannot_be_written_to_is_told_at_once(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("kept")
    for of, given, why in (
        (output_folder, taken, r"cannot make the folder '.*taken': File exists"),
        (output_file, taken / "results.json", r"cannot make the folder '.*taken': "),
        (output_file, tmp_path, "is a folder, expected a file to write"),
        (folder, taken, "taken' is no folder"),
    ):
        with pytest.raises(ArgumentTypeError, match=why):
            of(str(given))
    assert taken.read_text() == "kept"

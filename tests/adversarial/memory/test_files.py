"""Whoever edits its own file, so that the finals load other code than what the search has verified, does not win."""

from __future__ import annotations

import shutil
from pathlib import Path

from registry.problem import Problem
from registry.tuner.events import Note

from ...tiers import THOROUGH
from ..cheating_run import CheatingRun


@THOROUGH
def test_a_file_that_edits_itself_is_out_of_the_finals(tmp_path: Path) -> None:
    plugin = tmp_path / "cheats_with_files.py"
    shutil.copy(Path(__file__).with_name(plugin.name), plugin)
    run = CheatingRun(str(plugin), "file", [Problem("square", {"n": 20_002, "dtype": "float32"})], tmp_path)
    assert run.trials["edited"].status == "ok"
    assert run.winners == {"square": ""}
    notes = [event.message for event in run.events if isinstance(event, Note)]
    assert any("a file of it has changed since the run began" in message for message in notes), notes

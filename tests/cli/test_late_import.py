"""Commands that only read what is stored import neither torch nor a plugin: half a GiB, and seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..report.records import fill

COMMAND = """
import sys, kernel_registry
sys.argv = ["registry", *sys.argv[1:]]
try:
    kernel_registry.registry()
except SystemExit as ended:
    assert not ended.code, ended.code
assert "torch" not in sys.modules
"""
ASKED_LATER = """
import registry
assert registry.call and registry.__version__, "who asks for a public name gets it, and torch with it"
assert "torch" in sys.modules and "__getattr__" not in vars(registry)
assert registry.Problem is __import__("registry.problem", fromlist=["Problem"]).Problem
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["results"],
        ["results", "--op", "softmax", "--json"],
        ["results", "--trials", "--status", "wrong_result"],
        ["report", "--out", "-"],
        ["export", "-"],
        ["export", "--winners-only", "-"],
        ["import", "FILE"],
        ["db", "upgrade"],
    ],
)
def test_a_command_about_what_is_stored_imports_no_torch(words: list[str], tmp_path: Path) -> None:
    database, file = fill(tmp_path / "tuning.db"), tmp_path / "export.jsonl"
    if "FILE" in words:
        subprocess.run(
            [sys.executable, "-c", COMMAND, "export", str(file), "--db", str(database)], check=True, timeout=240
        )
    given = [str(file) if word == "FILE" else word for word in words]
    where, code = ["--db", str(database)], COMMAND
    if words == ["--help"]:
        where, code = [], COMMAND + ASKED_LATER
    subprocess.run([sys.executable, "-c", code, *given, *where], check=True, timeout=240)

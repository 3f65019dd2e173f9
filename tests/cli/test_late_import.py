"""Commands that only read what is stored import neither torch nor a plugin: half a GiB, and seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .. import fresh
from ..report.records import fill

COMMANDS = """
import json, sys, kernel_registry
for words in json.loads(sys.argv[1]):
    sys.argv = ["registry", *words]
    try:
        kernel_registry.registry()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
    assert "torch" not in sys.modules, words
"""


@pytest.mark.thorough
def test_commands_about_what_is_stored_import_no_torch(tmp_path: Path) -> None:
    where, file = ["--db", str(fill(tmp_path / "tuning.db"))], str(tmp_path / "export.jsonl")
    commands = [
        ["results", *where],
        ["results", "--op", "softmax", "--json", *where],
        ["results", "--trials", "--status", "wrong_result", *where],
        ["report", "--out", "-", *where],
        ["export", "-", *where],
        ["export", "--winners-only", "-", *where],
        ["export", file, *where],
        ["import", file, *where],
        ["db", "upgrade", *where],
        ["--help"],
    ]
    told = json.dumps(commands)
    subprocess.run([sys.executable, "-c", COMMANDS, told], check=True, timeout=240, stdout=subprocess.DEVNULL)


ASKED_LATER = """
import sys, kernel_registry
sys.argv = ["registry", "--help"]
try:
    kernel_registry.registry()
except SystemExit as ended:
    assert not ended.code
import registry
assert "__getattr__" in vars(registry)
assert registry.call and registry.__version__, "who asks for a public name gets it, and all others with it"
assert "__getattr__" not in vars(registry) and "registry.api" in sys.modules
assert registry.Problem is __import__("registry.problem", fromlist=["Problem"]).Problem
"""


def test_who_asks_for_a_public_name_later_gets_it() -> None:
    done = fresh.run("-c", ASKED_LATER)
    assert done.returncode == 0, done.stderr


HELP = """
import sys, kernel_registry
for words in (["--help"], ["tune", "--help"], ["db", "upgrade", "--help"]):
    sys.argv = ["registry", *words]
    try:
        kernel_registry.registry()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
print(*sorted({"torch", "sqlalchemy", "optuna", "numpy"} & sys.modules.keys()), file=sys.stderr)
"""


def test_help_imports_neither_torch_nor_the_database_nor_the_search() -> None:
    ended = subprocess.run([sys.executable, "-c", HELP], check=True, timeout=60, capture_output=True, text=True)
    assert ended.stdout.startswith("Usage: registry")
    assert not ended.stderr.strip()

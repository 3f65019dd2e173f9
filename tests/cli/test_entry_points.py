"""Every command of the scripts ``registry`` and ``tune``, each in a process that has imported nothing of ours.

What a command imports first differs from one to the next, and from what ``import registry`` does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.cli.main import new_registry_app

from .. import fresh
from ..report.records import fill
from ..tiers import one_of_each

SQUARE = ["square", "n=8", "dtype=float32"]
SHAPES = "square: [{n: 8, dtype: float32}]\n"
DRY_RUN = ["--shapes", "shapes.yaml", "--device", "cpu", "--implementations", "torch.native", "--dry-run"]
COMMANDS = {
    "ops": [],
    "plugins": [],
    "explain": SQUARE,
    "winners": [],
    "profile": ["--shapes", "shapes.yaml", "--device", "cpu", "--calls", "1"],
    "tune": DRY_RUN,
    "results": ["--db", "tuning.db"],
    "report": ["--db", "tuning.db", "--out", "-"],
    "dashboard": ["--db", "nothing.db"],
    "doctor": [],
    "export": ["-", "--db", "tuning.db"],
    "compile": ["--arch", "sm_90", "--op", "square", "--implementations", "cuda.vector"],
    "import": ["none.jsonl", "--db", "tuning.db"],
    "db": ["upgrade", "--db", "tuning.db"],
    "new": ["op", "acme::thing", "--folder", "made"],
    "check": ["none.py"],
    "compare": ["tuning.db", "tuning.db"],
    "release": ["list", "--db", "tuning.db"],
    "fleet": ["status", "--db", "tuning.db"],
    "drift": ["--device", "cpu", "--db", "nothing.db"],
    "scaffold": ["--op", "acme::thing", "--from", "reference", "--function", "none.py"],
    "race": ["none.py", "--op", "square", "--shapes", "shapes.yaml"],
    "import-kernel": ["none.py", "--op", "square", "--out", "made.py"],
}
"""Words after each command, of what costs it the least."""

REFUSED = {
    "dashboard": "nothing.db",
    "import": "none.jsonl",
    "check": "none.py",
    "scaffold": "none.py",
    "race": "none.py",
    "import-kernel": "none.py",
}
"""Commands that are given what is not there, and the name that they then tell."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shapes file and a database."""
    made = tmp_path_factory.mktemp("entry_points")
    (made / "shapes.yaml").write_text(SHAPES)
    fill(made / "tuning.db")
    return made


def test_no_command_is_left_out() -> None:
    program = new_registry_app()
    groups = {group.name for group in program.registered_groups}
    assert {command.name for command in program.registered_commands} | groups == COMMANDS.keys()


def _what_it_does(command: str) -> str:
    """The kinds of commands: those that read what is stored, write it, ask the catalog, or take or make a kernel."""
    kinds = {
        "stored": ("results", "winners", "report", "dashboard", "export", "db", "compare", "drift"),
        "written": ("release", "import", "fleet"),
        # the script tune is run below
        "catalog": ("ops", "plugins", "doctor", "explain", "compile", "tune", "profile"),
        "authors": ("check", "race", "scaffold", "import-kernel", "new"),
    }
    return next((kind for kind, commands in kinds.items() if command in commands), command)


@pytest.mark.parametrize("command", one_of_each(COMMANDS, _what_it_does))
@pytest.mark.few(1)
def test_a_command_runs_where_nothing_of_ours_is_imported(command: str, folder: Path) -> None:
    started = _started("registry", [command, *COMMANDS[command]], folder)
    assert "Traceback" not in started.stderr, started.stderr
    assert started.returncode == (2 if command in REFUSED else 0), started.stderr
    assert REFUSED.get(command, "") in started.stderr


def test_the_script_tune_runs_where_nothing_of_ours_is_imported(folder: Path) -> None:
    started = _started("tune", DRY_RUN, folder)
    assert started.returncode == 0, started.stderr
    assert "torch.native" in started.stdout


def _started(script: str, words: list[str], folder: Path) -> fresh.Done:
    code = f"""
import sys
assert "registry" not in sys.modules
sys.argv[0] = {script!r}
from kernel_registry import {script} as main
main()
"""
    return fresh.run("-c", code, *words, cwd=folder)

"""Output that cannot be written, or not in the terminal's encoding: told in a line, or shown with escapes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .. import fresh
from ..report.records import fill
from .conftest import Command

COMMANDS = [
    ["results"],
    ["results", "--json"],
    ["results", "--trials", "--json"],
    ["export", "-"],
    ["report", "--out", "-"],
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with trials and a winner."""
    return fill(tmp_path_factory.mktemp("database") / "tuning.db")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", [*COMMANDS, ["--help"], ["results", "--help"]], ids=" ".join)
@pytest.mark.few(4)
def test_output_to_a_full_disk_is_one_line(
    command: Command, database: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        patch.setenv("KERNEL_REGISTRY_DB", str(database))
        told = command("registry", *words)
    assert told.code == 1
    assert told.err.startswith("registry: a file or the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.few(3)
def test_a_reader_that_goes_ends_a_command_as_sigpipe_does(
    command: Command, database: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    with os.fdopen(ours, "w", encoding="utf-8") as unread, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", unread)
        patch.setattr(sys, "stderr", sys.stderr)  # typer replaces both
        told = command("registry", *words, "--db", database)
    assert (told.code, told.err) == (141, "")


CLOSED = """
import os, sys
for number in (0, 1):
    os.close(number)
sys.stdin = sys.stdout = None
sys.argv[0] = "registry"
import kernel_registry
try:
    kernel_registry.registry()
finally:
    os.fstat(0), os.fstat(1)
"""
ENCODED = """
import sys
sys.stdout = open(1, "w", encoding="ascii", closefd=False)
sys.argv[0] = "registry"
import kernel_registry
kernel_registry.registry()
"""


def test_a_closed_stdout_is_no_fault(database: Path) -> None:
    done = fresh.run("-c", CLOSED, "results", "--db", database, limit_s=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_encoding_of_a_terminal_lacks_is_escaped(database: Path) -> None:
    done = fresh.run("-c", ENCODED, "results", "--db", database, limit_s=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xb5s" in done.stdout


def test_a_page_is_utf8_in_any_locale(database: Path) -> None:
    done = fresh.run("-c", ENCODED, "report", "--out", "-", "--db", database, limit_s=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "µ" in done.stdout

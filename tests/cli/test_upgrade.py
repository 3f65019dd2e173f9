"""``registry db upgrade``: older databases, and what readers say of them."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tuning_db import schema

from ..tuning_db.test_schema import FIXTURES, NEXT, NEXT_MIGRATION
from .conftest import Command


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of version 1, for an installation that reads none but a version newer than the latest."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    (folder / "versions" / f"v{NEXT:04}_host.py").write_text(NEXT_MIGRATION)
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "LATEST", NEXT)
    monkeypatch.setattr("tuning_db.database.engine.LATEST", NEXT)
    monkeypatch.setattr(schema, "READABLE", frozenset({NEXT}))
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript((FIXTURES / "v1.sql").read_text(encoding="utf-8"))
    connection.close()
    return path


def test_a_reader_changes_nothing_and_says_what_to_run(command: Command, old: Path) -> None:
    before = old.read_bytes()
    for arguments in (["results"], ["results", "--trials"], ["export", old.parent / "out"], ["report"], ["dashboard"]):
        told = command("registry", *arguments, "--db", old)
        assert told.code == 2, arguments
        assert "has schema version 1" in told.err
        assert "registry db upgrade" in told.err
    assert old.read_bytes() == before
    assert command("registry", "db", "upgrade", "--db", old).code == 0
    assert "triton.row" in command("registry", "results", "--db", old).out


def test_it_says_from_what_to_what_once(command: Command, old: Path) -> None:
    told = command("registry", "db", "upgrade", "--db", old)
    assert (told.code, told.out) == (0, f"sqlite:///{old} upgraded from schema version 1 to {NEXT}\n")
    told = command("registry", "db", "upgrade", "--db", old)
    assert (told.code, told.out) == (0, f"sqlite:///{old} has schema version {NEXT}, the latest: nothing to do\n")


def test_what_is_not_there_is_bad_input(command: Command, tmp_path: Path) -> None:
    told = command("registry", "db", "upgrade", "--db", tmp_path / "none.db")
    assert told.code == 2
    assert "there is no database at" in told.err
    assert list(tmp_path.iterdir()) == []

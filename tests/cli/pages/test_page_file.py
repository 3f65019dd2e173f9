"""A page replaces an older page and no other file, and is written whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ...report.records import fill
from ..conftest import Command


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return fill(tmp_path / "some.db")


@pytest.mark.thorough
def test_a_report_is_replaced_and_nothing_else_is(command: Command, database: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "report.html", tmp_path / "notes.html"
    for _ in range(2):
        told = command("registry", "report", "--db", database, "--out", out)
        assert told.code == 0
        assert told.out.startswith(f"{out} written (0.1")
    assert stat.S_IMODE(out.stat().st_mode) & 0o400
    other.write_text("<html>mine</html>")
    told = command("registry", "report", "--db", database, "--out", other)
    assert told.code == 2
    assert "there is a file that is not a report" in told.err
    assert "--force" in told.err
    assert other.read_text() == "<html>mine</html>"
    assert command("registry", "report", "--db", database, "--out", other, "--force").code == 0
    assert "Tuning report" in other.read_text()
    assert sorted(path.name for path in tmp_path.glob("*.html*")) == ["notes.html", "report.html"]


def test_a_link_to_a_report_stays_a_link(command: Command, database: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.touch()
    link.symlink_to(real)
    assert command("registry", "report", "--db", database, "--out", link).code == 0
    assert link.is_symlink()
    assert "Tuning report" in real.read_text()


def test_a_folder_that_cannot_be_written_is_told(
    command: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("registry.paths.Path.write_bytes", refuse)
    told = command("registry", "report", "--db", database, "--out", tmp_path / "out.html")
    assert told.code == 2
    assert "out.html: Permission denied" in told.err

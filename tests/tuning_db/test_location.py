"""What a database may be called, and how that is shown to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuning_db import UnreachableDatabaseError
from tuning_db.database.location import locate


def test_a_path_and_a_url_name_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "a.db", "a.db", str(tmp_path / "a.db"), f"sqlite:///{tmp_path}/a.db", "sqlite:///a.db"):
        found = locate(given)
        assert found.path == tmp_path / "a.db"
        assert found.shown == f"sqlite:///{tmp_path}/a.db"


def test_a_path_may_start_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/a.db").path == tmp_path / "a.db"


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://me:geheim@host:5433/db",
        "postgresql+psycopg://me:geheim@host/db",
        "postgresql://me@host/db?password=geheim",
        "postgresql://me@host/db?sslpassword=geheim&sslmode=require",
    ],
)
def test_passwords_are_hidden(given: str) -> None:
    found = locate(given)
    assert "geheim" not in found.shown
    assert "***" in found.shown
    assert found.shown.startswith("postgresql://me")
    assert found.server is not None
    assert found.server.drivername == "postgresql+psycopg"
    assert "geheim" in found.server.render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("mysql://me:geheim@host/db", "mysql is not a database this store can use"),
        ("postgresql://me:geheim@host:port/db", "cannot read the database URL postgresql://..."),
        ("://geheim", "cannot read the database URL ://..."),
        ("sqlite://", "a database in memory"),
        (":memory:", "a database in memory"),
        ("sqlite:///:memory:", "a database in memory"),
        ("sqlite:///file:a.db?uri=true", "takes a path"),
        ("sqlite:///a.db?cache=shared", "takes a path"),
    ],
)
def test_what_cannot_be_used_is_told_without_its_password(given: str, fault: str) -> None:
    with pytest.raises(UnreachableDatabaseError) as caught:
        locate(given)
    assert fault in caught.value.message
    assert "give a path" in caught.value.hint
    assert "geheim" not in str(caught.value)

"""Versions of the schema: what alembic makes is what the models say, and old files go on working."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tuning_db import MissingDatabaseError, OutdatedSchemaError, ReadOnlyDatabaseError, Store, schema
from tuning_db.models import VERSION_TABLE, Table

FIXTURES = Path(__file__).parent / "fixtures"
SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    with op.batch_alter_table("trial") as trial:
        trial.add_column(sa.Column("host", sa.Text, nullable=False, server_default="unknown"))
        trial.alter_column("message", nullable=True)
"""


def test_migrations_make_what_the_models_say(store: Store) -> None:
    with store._opened.reader.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": VERSION_TABLE, "target_metadata": Table.metadata}
        )
        assert compare_metadata(context, Table.metadata) == []


def test_the_latest_migration_is_the_version_this_code_writes() -> None:
    newest = max(path.name for path in (schema.MIGRATIONS / "versions").glob("v*.py"))
    assert newest.startswith(f"v{schema.LATEST:04}_")
    assert schema.LATEST in schema.READABLE
    assert {f"v{version}.sql" for version in range(1, schema.LATEST + 1)} == {path.name for path in FIXTURES.iterdir()}


@pytest.mark.parametrize("migrate", [True, False])
@pytest.mark.parametrize("dump", sorted(FIXTURES.glob("*.sql")), ids=lambda path: str(path.stem))
def test_a_file_of_every_version_can_be_read(tmp_path: Path, dump: Path, migrate: bool, make: Any) -> None:
    with Store.open(_restored(dump, tmp_path), create=migrate, migrate=migrate) as store:
        decision = store.winner(make.problem(), make.environment.hardware, make.environment.software)
        assert decision is not None
        assert decision.candidate == make.candidate(8)
        assert decision.previous is not None
        assert [entry.median_us for entry in store.history(make.problem(), make.environment.hardware)] == [9.5, 10.5]
        assert [final.role for final in store.finals(decision.uid)] == ["candidate", "copy", "floor"]
        assert [(trial.status, trial.median_us) for trial in store.trials()] == [("crash", None), ("ok", 10.5)]
        assert store.runs()[0].summary == {"aa_noise": 0.004}


@pytest.mark.parametrize("dump", sorted(FIXTURES.glob("*.sql")), ids=lambda path: str(path.stem))
def test_a_file_of_every_version_can_be_written(tmp_path: Path, dump: Path, make: Any) -> None:
    with Store.open(_restored(dump, tmp_path)) as store:
        store.add_trials(store.start_run(make.environment), [make.trial()])
        assert len(store.trials()) == 3
        assert store.statistics().schema_version == schema.LATEST


@pytest.fixture
def second_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that knows one more version than this one."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    (folder / "versions" / "v0002_host.py").write_text(SECOND)
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "LATEST", 2)
    monkeypatch.setattr("tuning_db.engine.LATEST", 2)
    monkeypatch.setattr(schema, "READABLE", frozenset({2}))


@pytest.mark.usefixtures("second_version")
def test_an_older_file_is_migrated_with_all_it_holds(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    with Store.open(path) as store:
        assert len(store.trials()) == 2
        assert store.statistics().schema_version == 2
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT DISTINCT host FROM trial").fetchall() == [("unknown",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("0002",)]
    connection.close()


@pytest.mark.usefixtures("second_version")
def test_an_older_file_that_cannot_be_read_is_only_migrated_when_asked(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    before = path.read_bytes()
    with pytest.raises(OutdatedSchemaError, match="schema version 1, this installation reads") as caught:
        Store.open(path, create=False, migrate=False)
    assert caught.value.hint == "`registry db upgrade` brings it up to date, with all it holds"
    assert path.read_bytes() == before


@pytest.mark.usefixtures("second_version")
def test_an_upgrade_says_from_what_to_what_and_is_harmless_twice(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    assert Store.upgrade(path) == (1, 2)
    before = path.read_bytes()
    assert Store.upgrade(path) == (2, 2)
    assert path.read_bytes() == before
    with Store.open(path, create=False, migrate=False) as store:
        assert len(store.trials()) == 2


def test_a_server_is_upgraded_like_a_file(postgresql_url: str) -> None:
    Store.open(postgresql_url).close()
    assert Store.upgrade(postgresql_url) == (schema.LATEST, schema.LATEST)


def test_nothing_is_made_where_there_is_nothing_to_upgrade(tmp_path: Path) -> None:
    with pytest.raises(MissingDatabaseError, match="there is no database at"):
        Store.upgrade(tmp_path / "tuning.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("readable", [{2}, {1, 2}])
@pytest.mark.usefixtures("second_version")
def test_what_can_only_be_read_is_not_upgraded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: set[int]
) -> None:
    monkeypatch.setattr(schema, "READABLE", frozenset(readable))
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    before = path.read_bytes()
    with pytest.raises(ReadOnlyDatabaseError, match=r"schema version 1.* and can only be read") as caught:
        Store.upgrade(f"sqlite:///{path}?mode=ro")
    assert "writable" in caught.value.hint
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, second_version: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = schema.MIGRATIONS / "versions" / "v0002_host.py"
    broken.write_text(SECOND + "    raise RuntimeError('half way')\n")
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    for opened in (Store.open, Store.upgrade):
        with pytest.raises(RuntimeError, match="half way"):
            opened(path)
    connection = sqlite3.connect(path)
    assert connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("0001",)]
    assert "host" not in [row[1] for row in connection.execute("PRAGMA table_info(trial)")]
    connection.close()


def _restored(dump: Path, folder: Path) -> Path:
    path = folder / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    return path

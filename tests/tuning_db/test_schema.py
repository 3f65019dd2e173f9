"""Versions of the schema: what alembic makes is what the models say, and old files go on working."""

from __future__ import annotations

import io
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, MetaData, String, Table, create_engine, inspect, select, text

from tuning_db import (
    Interval,
    MissingDatabaseError,
    NewerSchemaError,
    OutdatedSchemaError,
    ReadOnlyDatabaseError,
    Store,
    Transfer,
    TuningDBError,
    schema,
)
from tuning_db.models import StoredRow
from tuning_db.schema import VERSION_TABLE

from ..tiers import one_of_each

if TYPE_CHECKING:  # see late_imports
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext

pytestmark = pytest.mark.usefixtures("late_imports")

FIXTURES = Path(__file__).parent / "fixtures"
NEXT = schema.LATEST + 1
NEXT_MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT:04}"
down_revision = "{schema.LATEST:04}"


def upgrade():
    with op.batch_alter_table("trial") as trial:
        trial.add_column(sa.Column("host", sa.Text, nullable=False, server_default="unknown"))
        trial.alter_column("message", nullable=True)
"""


def described(connection: Connection) -> dict[str, Any]:
    """Everything of each table but the order of its columns."""
    found = inspect(connection)
    parts = (found.get_columns, found.get_foreign_keys, found.get_indexes, found.get_unique_constraints)
    return {
        name: [found.get_pk_constraint(name), *(sorted(map(str, part(name))) for part in parts)]
        for name in found.get_table_names()
    }


def test_a_new_database_is_what_all_migrations_make(url: str, tmp_path: Path) -> None:
    Store.open(url).close()
    created = create_engine(url)
    with created.begin() as connection:
        at_once = described(connection)
        columns = [column["name"] for column in inspect(connection).get_columns("trial")]
        for statement in reversed(StoredRow.metadata.sorted_tables):
            statement.drop(connection)
        connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
        schema.migrate_stepwise(connection)
        assert described(connection) == at_once
        assert [column["name"] for column in inspect(connection).get_columns("trial")] == columns
    created.dispose()
    with Store.open(url, create=False, migrate=False) as store:
        assert store.trials() == []


def test_what_is_made_is_what_the_models_say(store: Store) -> None:
    with store._opened.reader.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"compare_type": True, "version_table": VERSION_TABLE, "target_metadata": StoredRow.metadata},
        )
        assert compare_metadata(context, StoredRow.metadata) == []


def test_the_latest_migration_is_the_version_this_code_writes() -> None:
    newest = max(path.name for path in (schema.MIGRATIONS / "versions").glob("v*.py"))
    assert newest.startswith(f"v{schema.LATEST:04}_")
    assert schema.LATEST in schema.READABLE
    dumps = {path.name for path in FIXTURES.iterdir()}
    assert {f"v{version}.sql" for version in range(1, schema.LATEST + 1)} <= dumps


@pytest.mark.parametrize("migrate", [True, False])
@pytest.mark.parametrize("dump", sorted(FIXTURES.glob("*.sql")), ids=lambda path: str(path.stem))
@pytest.mark.few(6)
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
@pytest.mark.few(3)
def test_a_file_of_every_version_can_be_written(tmp_path: Path, dump: Path, make: Any) -> None:
    with Store.open(_restored(dump, tmp_path)) as store:
        store.add_trials(store.start_run(make.environment), [make.trial()])
        assert len(store.trials()) == 3
        assert store.statistics().schema_version == schema.LATEST


@pytest.mark.parametrize(
    ("name", "migrate"),
    one_of_each(
        [(name, migrate) for name in ("v1_comparisons", "v2", "v3", "v4", "v5", "v6") for migrate in (True, False)],
        lambda name, migrate: name,
    ),
)
@pytest.mark.few(2)
def test_ties_and_the_defaults_ratio_are_read_from_every_version(
    tmp_path: Path, name: str, migrate: bool, make: Any
) -> None:
    path = _restored(FIXTURES / f"{name}.sql", tmp_path)
    before = path.read_bytes()
    with Store.open(path, create=migrate, migrate=migrate) as store:
        newest, first = store.history(make.problem(), make.environment.hardware)
        exported = io.StringIO()
        store.export(exported)
    assert newest.baselines == {"torch.native": 2.0}
    assert newest.default_ratio == Interval(1.4, 1.36, 1.44)
    assert newest.ties == ("triton.row num_warps=16",)
    assert (first.baselines, first.default_ratio, first.ties) == ({}, None, ())
    assert newest.transfers == ({"cols": Transfer(513, 1024, ("abc",))} if name in {"v3", "v4", "v5", "v6"} else {})
    assert (newest.artifact_hash, first.artifact_hash) == ("abab" if name == "v6" else "", "")
    assert migrate or path.read_bytes() == before
    with Store.open(tmp_path / "imported.db") as store:
        store.load(io.StringIO(exported.getvalue()))
        assert store.history(make.problem(), make.environment.hardware) == [newest, first]


def test_the_migration_to_version_2_leaves_only_ratios_in_baselines(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1_comparisons.sql", tmp_path)
    assert Store.upgrade(path) == (1, schema.LATEST)
    connection = sqlite3.connect(path)
    columns = "baselines, default_ratio, default_lo, default_hi, ties"
    assert connection.execute(f"SELECT {columns} FROM decision ORDER BY id").fetchall() == [
        ("{}", None, None, None, "[]"),
        ('{"torch.native": 2.0}', 1.4, 1.36, 1.44, '["triton.row num_warps=16"]'),
    ]
    connection.close()


def test_a_server_of_version_1_is_read_and_migrated(postgresql_url: str, tmp_path: Path, make: Any) -> None:
    _copied_to_server(_restored(FIXTURES / "v1_comparisons.sql", tmp_path), postgresql_url)
    with Store.open(postgresql_url, create=False, migrate=False) as store:
        before = store.history(make.problem(), make.environment.hardware)
        assert store.statistics().schema_version == 1
    assert before[0].default_ratio == Interval(1.4, 1.36, 1.44)
    assert before[0].ties == ("triton.row num_warps=16",)
    assert Store.upgrade(postgresql_url) == (1, schema.LATEST)
    with Store.open(postgresql_url, create=False, migrate=False) as store:
        assert store.history(make.problem(), make.environment.hardware) == before
        assert store.publish(store.runs()[0].uid, make.decision(previous=before[0].uid, ties=("a",)))


def test_results_are_not_added_to_an_older_version(tmp_path: Path, make: Any) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    with (
        Store.open(path, create=False, migrate=False) as store,
        pytest.raises(
            OutdatedSchemaError, match=f"has schema version 1, only version {schema.LATEST} can be added to"
        ) as caught,
    ):
        store.start_run(make.environment)
    assert "registry db upgrade" in caught.value.hint


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that knows one more version than this one."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    (folder / "versions" / f"v{NEXT:04}_host.py").write_text(NEXT_MIGRATION)
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "LATEST", NEXT)
    monkeypatch.setattr("tuning_db.database.engine.LATEST", NEXT)
    monkeypatch.setattr(schema, "READABLE", frozenset({NEXT}))


@pytest.mark.usefixtures("next_version")
def test_an_older_file_is_migrated_with_all_it_holds(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    with Store.open(path) as store:
        assert len(store.trials()) == 2
        assert store.statistics().schema_version == NEXT
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT DISTINCT host FROM trial").fetchall() == [("unknown",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [(f"{NEXT:04}",)]
    connection.close()


@pytest.mark.usefixtures("next_version")
def test_an_older_file_that_cannot_be_read_is_only_migrated_when_asked(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    before = path.read_bytes()
    with pytest.raises(OutdatedSchemaError, match="schema version 1, this installation reads") as caught:
        Store.open(path, create=False, migrate=False)
    assert caught.value.hint == "`registry db upgrade` brings it up to date, with all it holds"
    assert path.read_bytes() == before


@pytest.mark.usefixtures("next_version")
def test_an_upgrade_says_from_what_to_what_and_is_harmless_twice(tmp_path: Path) -> None:
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    assert Store.upgrade(path) == (1, NEXT)
    before = path.read_bytes()
    assert Store.upgrade(path) == (NEXT, NEXT)
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


@pytest.mark.parametrize("readable", [{NEXT}, {1, NEXT}])
@pytest.mark.usefixtures("next_version")
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
    tmp_path: Path, next_version: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = schema.MIGRATIONS / "versions" / f"v{NEXT:04}_host.py"
    broken.write_text(NEXT_MIGRATION + "    raise RuntimeError('half way')\n")
    path = _restored(FIXTURES / "v1.sql", tmp_path)
    for opened in (Store.open, Store.upgrade):
        with pytest.raises(RuntimeError, match="half way"):
            opened(path)
    connection = sqlite3.connect(path)
    assert connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("0001",)]
    assert "host" not in [row[1] for row in connection.execute("PRAGMA table_info(trial)")]
    connection.close()


KILLED = """
import os, signal, sys
from sqlalchemy import Engine, event
from tuning_db import Store

@event.listens_for(Engine, "after_cursor_execute")
def executed(connection, cursor, statement, *_):
    if "CREATE TABLE fleet_job" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

Store.upgrade(sys.argv[1])
"""
"""Upgrades a database and is killed when most of the steps are done."""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_migration_that_was_killed_is_undone_and_can_be_made_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, environment_variables: dict[str, str]
) -> None:
    path = _restored(FIXTURES / "v1_comparisons.sql", tmp_path)
    url = f"sqlite:///{path}"
    if kind == "postgresql":
        url = request.getfixturevalue("postgresql_url")
        _copied_to_server(path, url)
    done = subprocess.run([sys.executable, "-c", KILLED, url], env=environment_variables, check=False)
    assert done.returncode == -signal.SIGKILL
    with Store.open(url, create=False, migrate=False) as store:
        assert len(store.trials()) == 2
    assert Store.upgrade(url) == (1, schema.LATEST)
    with Store.open(url) as store:
        assert len(store.trials()) == 2


def test_a_reader_neither_ends_nor_waits_for_a_migration_that_waits_for_it(
    postgresql_url: str, tmp_path: Path, make: Any
) -> None:
    _copied_to_server(_restored(FIXTURES / "v1_comparisons.sql", tmp_path), postgresql_url)
    server = create_engine(postgresql_url.replace("://", "+psycopg://", 1))
    with ThreadPoolExecutor() as threads, Store.open(postgresql_url, create=False, migrate=False) as store:
        with server.connect() as reader:
            reader.execute(text("SELECT count(*) FROM decision"))
            upgraded = threads.submit(Store.upgrade, postgresql_url)
            until = time.monotonic() + 3
            while time.monotonic() < until:
                began = time.monotonic()
                assert len(store.trials()) == 2
                assert store.winner(make.problem(), make.environment.hardware, make.environment.software) is not None
                assert time.monotonic() - began < 2, "dispatch waits for 2 s"
            assert not upgraded.done()
        assert upgraded.result(30) == (1, schema.LATEST)
    server.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_open_store_that_a_newer_version_has_upgraded_says_so(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, make: Any
) -> None:
    url = request.getfixturevalue("postgresql_url") if kind == "postgresql" else f"sqlite:///{tmp_path / 'new.db'}"
    newer = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with Store.open(url) as store:
        run = store.start_run(make.environment)
        with newer.begin() as connection:
            connection.execute(text("ALTER TABLE trial RENAME COLUMN message TO told"))
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0099'"))
        for use in (store.trials, lambda: store.add_trials(run, [make.trial()])):
            with pytest.raises(NewerSchemaError, match="has schema version 99"):
                use()
        with newer.begin() as connection:
            connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
        with pytest.raises(TuningDBError, match=r"no such column|does not exist|another application"):
            store.trials()
    newer.dispose()


def _restored(dump: Path, folder: Path) -> Path:
    path = folder / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    return path


def _copied_to_server(path: Path, url: str) -> None:
    """A database of version 1 on the server at ``url``, with the rows of the SQLite file at ``path``."""
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    file, server = create_engine(f"sqlite:///{path}"), create_engine(url.replace("://", "+psycopg://", 1))
    with file.connect() as source, server.begin() as target:
        config.attributes["connection"] = target
        command.upgrade(config, "0001")
        old = MetaData()
        old.reflect(target)
        for table in old.sorted_tables:
            rows = [] if table.name == VERSION_TABLE else _rows(source, table)
            if rows:
                target.execute(table.insert(), rows)
            if "id" in table.c and not isinstance(table.c.id.type, String):
                largest = f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) FROM {table.name}"
                target.execute(text(largest))
    file.dispose()
    server.dispose()


def _rows(source: Connection, table: Table) -> list[dict[str, Any]]:
    return [dict(row) for row in source.execute(select(table)).mappings()]

"""What may lie at the place that was named, and what the store says about it. Nothing of others is ever changed."""

from __future__ import annotations

import io
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tuning_db import (
    CorruptedDatabaseError,
    Environment,
    ForeignDatabaseError,
    MissingDatabaseError,
    NewerSchemaError,
    ReadOnlyDatabaseError,
    Store,
    TuningDBError,
    UnreachableDatabaseError,
)
from tuning_db.database.location import locate
from tuning_db.schema import LATEST

Script = Callable[[str, Sequence[str]], str]
OPTIONS: list[dict[str, bool]] = [{}, {"create": False}, {"create": False, "migrate": False}]


def test_importing_the_package_loads_no_database_library(environment_variables: dict[str, str]) -> None:
    source = (
        "import sys, tuning_db; print([n for n in ('sqlalchemy', 'alembic', 'pydantic', 'torch') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment_variables
    )
    assert done.stdout.strip() == "[]"


def test_alembic_is_only_loaded_when_the_schema_is_behind(file: Path, environment_variables: dict[str, str]) -> None:
    source = "import sys, tuning_db; tuning_db.Store.open(sys.argv[1]).close(); print('alembic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source, file], capture_output=True, text=True, check=True, env=environment_variables
    )
    assert done.stdout.strip() == "False"


def test_a_new_file_is_made_with_its_folders_and_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "a%20 b?c#d" / "ünï" / "tuning.db"
    with Store.open(path) as store:
        assert store.trials() == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_the_environment_variable_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "named.db"))
    with Store.open() as store:
        assert store.url == f"sqlite:///{tmp_path / 'named.db'}"


def test_the_default_is_a_file_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNEL_REGISTRY_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Store.open() as store:
        assert store.url == f"sqlite:///{tmp_path / 'kernel-registry' / 'tuning.db'}"


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_a_missing_file_is_not_made_unless_asked(tmp_path: Path, options: dict[str, bool]) -> None:
    with pytest.raises(MissingDatabaseError, match="there is no database at sqlite:///"):
        Store.open(tmp_path / "nothing" / "tuning.db", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_like_a_missing_one(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "tuning.db"
    path.touch()
    with pytest.raises(MissingDatabaseError, match="holds no tuning results"):
        Store.open(path, create=False)
    assert path.stat().st_size == 0
    with Store.open(path) as store:
        store.start_run(make.environment)


def test_an_empty_server_database_is_not_filled_unless_asked(postgresql_url: str) -> None:
    with pytest.raises(MissingDatabaseError, match="holds no tuning results"):
        Store.open(postgresql_url, create=False)
    Store.open(postgresql_url).close()
    Store.open(postgresql_url, create=False, migrate=False).close()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to hold a header\n" * 100, b"x", b"my notes\n" * 9]
)
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes, options: dict[str, bool]) -> None:
    path = tmp_path / "tuning.db"
    path.write_bytes(content)
    with pytest.raises(CorruptedDatabaseError, match=r"tuning\.db is not a SQLite database"):
        Store.open(path, **options)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.few(1)
def test_a_damaged_file_is_left_alone(file: Path, options: dict[str, bool]) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + b"\xff" * 4000 + whole[4100:])
    before = file.read_bytes()
    with pytest.raises(CorruptedDatabaseError, match="is damaged"):
        Store.open(file, **options)
    assert file.read_bytes() == before


def test_damage_that_shows_while_reading_is_told(file: Path) -> None:
    whole = file.read_bytes()
    page = 4096
    file.write_bytes(whole[: 2 * page] + b"\xff" * (len(whole) - 2 * page))
    with pytest.raises(CorruptedDatabaseError, match="is damaged"), Store.open(file) as store:
        store.trials()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_another_applications_file_is_left_alone(tmp_path: Path, journal: str, options: dict[str, bool]) -> None:
    path = tmp_path / "bookmarks.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE bookmark (url TEXT)")
    connection.execute("INSERT INTO bookmark VALUES ('a')")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ForeignDatabaseError, match=r"belongs to another application \(tables bookmark\)"):
        Store.open(path, **options)
    assert path.read_bytes() == before


def test_a_server_may_hold_other_tables_but_not_ours(postgresql_url: str) -> None:
    with _psycopg(postgresql_url) as connection:
        connection.execute("CREATE TABLE bookmark (url TEXT)")
    Store.open(postgresql_url).close()
    with _psycopg(postgresql_url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        connection.execute("CREATE TABLE trial (patient TEXT)")
    with pytest.raises(ForeignDatabaseError, match="tables trial"):
        Store.open(postgresql_url)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.few(1)
def test_a_newer_schema_is_left_alone(file: Path, options: dict[str, bool]) -> None:
    connection = sqlite3.connect(file)
    connection.execute("UPDATE tuning_db_version SET version_num = '0099'")
    connection.commit()
    connection.close()
    before = file.read_bytes()
    with pytest.raises(
        NewerSchemaError, match=f"schema version 99, this installation knows versions up to {LATEST}"
    ) as caught:
        Store.open(file, **options)
    assert "upgrade kernel-registry" in caught.value.hint
    assert file.read_bytes() == before


def test_a_newer_schema_on_a_server_is_left_alone(postgresql_url: str) -> None:
    Store.open(postgresql_url).close()
    with _psycopg(postgresql_url) as connection:
        connection.execute("UPDATE tuning_db_version SET version_num = '0099'")
    with pytest.raises(NewerSchemaError, match="schema version 99"):
        Store.open(postgresql_url)


def test_a_lost_stamp_is_told(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("DELETE FROM tuning_db_version")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptedDatabaseError, match="expected one version"):
        Store.open(file)


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(UnreachableDatabaseError, match="is a folder, expected a file") as caught:
        Store.open(tmp_path)
    assert str(tmp_path / "tuning.db") in caught.value.hint


def test_a_path_through_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreachableDatabaseError, match="cannot be opened"):
        Store.open(tmp_path / "file" / "tuning.db")


def test_a_server_that_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = f"postgresql://me:geheim@/tuning?host={tmp_path}&connect_timeout=2"
    with pytest.raises(UnreachableDatabaseError, match="cannot be reached") as caught:
        Store.open(url)
    assert "me:***@" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_server_without_that_database_is_told(postgresql_server: str) -> None:
    with pytest.raises(UnreachableDatabaseError, match='database "nowhere" does not exist'):
        Store.open(f"postgresql://tuner@/nowhere?host={postgresql_server}")


def test_a_server_that_only_lets_us_read_is_told(postgresql_url: str, make: Any) -> None:
    Store.open(postgresql_url).close()
    with Store.open(f"{postgresql_url}&options=-cdefault_transaction_read_only%3Don") as store:
        assert store.trials() == []
        with pytest.raises(ReadOnlyDatabaseError, match="can only be read"):
            store.start_run(make.environment)


def started(url: str, environment: Environment) -> str:
    with Store.open(url) as store:
        assert store.trials() == []
        return store.start_run(environment)


def test_a_user_who_lacks_a_right_is_told_which_grants_help(postgresql_url: str, make: Any) -> None:
    from sqlalchemy import create_engine, text

    Store.open(postgresql_url).close()
    name = f"reader_{uuid.uuid4().hex[:8]}"
    owner = create_engine(locate(postgresql_url).server or "", isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN"))
    theirs = postgresql_url.replace("://tuner@", f"://{name}@")
    try:
        for grant in ("USAGE ON SCHEMA public", "SELECT ON ALL TABLES IN SCHEMA public", ""):
            with pytest.raises(TuningDBError, match="does not let this user do that") as told:
                started(theirs, make.environment)
            assert "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES" in told.value.hint
            if grant:
                with owner.connect() as connection:
                    connection.execute(text(f"GRANT {grant} TO {name}"))
        with owner.connect() as connection:
            connection.execute(text(f"GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {name}"))
            connection.execute(text(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}"))
        started(theirs, make.environment)
        with Store.open(theirs) as store:  # nothing is deleted by it
            stream = io.StringIO()
            store.export(stream)
            assert store.load(io.StringIO(stream.getvalue())) == 0
    finally:
        with owner.connect() as connection:
            connection.execute(text(f"DROP OWNED BY {name}"))
            connection.execute(text(f"DROP ROLE {name}"))
        owner.dispose()


READ = """
import sys
from tuning_db import Environment, ReadOnlyDatabaseError, Store
for options in ({}, {"create": False}, {"create": False, "migrate": False}):
    with Store.open(sys.argv[1], **options) as store:
        assert store.read_only
        print(len(store.trials()), len(store.winners()))
        try:
            store.start_run(Environment({}, {}))
        except ReadOnlyDatabaseError as fault:
            print(fault.message.removeprefix(store.url))
"""
READ_RESULT = ["1 1", " can only be read"] * 3


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
@pytest.mark.few(1)
def test_a_read_only_file_can_be_read(open_folder: Path, file: Path, script: Script, folder_mode: int) -> None:
    path = open_folder / "tuning.db"
    path.write_bytes(file.read_bytes())
    path.chmod(0o444)
    open_folder.chmod(folder_mode)
    assert script(READ, [str(path)]).splitlines() == READ_RESULT
    assert path.read_bytes() == file.read_bytes()


@pytest.mark.thorough
def test_a_writable_file_in_a_read_only_folder_can_be_read(open_folder: Path, file: Path, script: Script) -> None:
    path = open_folder / "tuning.db"
    path.write_bytes(file.read_bytes())
    path.chmod(0o666)
    open_folder.chmod(0o555)
    assert script(READ, [str(path)]).splitlines() == READ_RESULT


@pytest.mark.thorough
def test_a_log_that_cannot_be_read_is_not_passed_over(open_folder: Path, file: Path, script: Script, make: Any) -> None:
    """Opening the file as immutable would silently show a state without the last transactions."""
    path = open_folder / "tuning.db"
    with Store.open(file) as store:
        store.add_trials(store.start_run(make.environment), [make.trial()])
        path.write_bytes(file.read_bytes())
        log = open_folder / "tuning.db-wal"
        log.write_bytes(file.with_name("tuning.db-wal").read_bytes())
    assert log.stat().st_size > 0
    log.chmod(0o000)
    path.chmod(0o444)
    open_folder.chmod(0o555)
    source = """
import sys
from tuning_db import Store, TuningDBError
try:
    Store.open(sys.argv[1])
except TuningDBError as fault:
    print(type(fault).__name__)
"""
    assert script(source, [str(path)]).strip() == "UnreachableDatabaseError"


def test_a_folder_that_cannot_be_written_gets_no_new_file(open_folder: Path, script: Script) -> None:
    open_folder.chmod(0o555)
    source = """
import sys
from tuning_db import Store, UnreachableDatabaseError
for path in sys.argv[1:]:
    try:
        Store.open(path)
    except UnreachableDatabaseError as fault:
        print(fault.message.removeprefix("sqlite:///" + path))
"""
    told = script(source, [str(open_folder / "tuning.db"), str(open_folder / "new" / "tuning.db")]).splitlines()
    assert told[0] == " cannot be made: its folder is not writable"
    assert told[1].startswith(" cannot be opened ([Errno 13] Permission denied")


def test_a_url_may_ask_for_reading_only(file: Path, make: Any) -> None:
    with Store.open(f"sqlite:///{file}?mode=ro") as store:
        assert len(store.trials()) == 1
        with pytest.raises(ReadOnlyDatabaseError):
            store.add_trials("any", [make.trial()])


def test_every_error_is_one_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    for place in (tmp_path, tmp_path / "garbage", "mysql://host/db", "sqlite://", "postgresql://host:port/x"):
        with pytest.raises(TuningDBError) as caught:
            Store.open(place)
        assert "\n" not in caught.value.message
        assert caught.value.hint


def _psycopg(url: str) -> Any:
    import psycopg

    return psycopg.connect(host=url.partition("host=")[2], user="tuner", dbname="postgres", autocommit=True)

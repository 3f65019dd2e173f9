"""The winners that dispatch reads: within seconds, whatever the database is, each row by itself."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tuning_db import (
    BusyDatabaseError,
    CandidateKey,
    CorruptedDatabaseError,
    ForeignDatabaseError,
    InvalidRecordError,
    MissingDatabaseError,
    NewerSchemaError,
    Store,
    Transfer,
    UnreachableDatabaseError,
)
from tuning_db.database.answering import within
from tuning_db.snapshot import UID, Snapshot, StoredWinner, best_of_each, read_winners

SECONDS = 1.0
"""Long enough for a healthy database; each of the others takes all of it."""


def read(url: str | Path, make: Any, seconds: float = 60.0) -> Snapshot:
    return read_winners(url, "softmax", make.environment.hardware, "cold", seconds)


def winners_of(snapshot: Snapshot) -> list[StoredWinner]:
    return [snapshot.winner(place) for place in range(snapshot.count)]


@pytest.mark.few(1)
def test_the_winners_are_those_of_the_store(url: str, store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    for rows in range(1, 30):
        store.publish(run, make.decision(make.problem(rows=rows), num_warps=1 + rows % 5, uid=f"decision {rows}"))
    store.publish(run, make.decision(make.problem(op="gelu")))
    found = {one.uid: one for one in winners_of(read(url, make))}
    expected = store.winners(op="softmax")
    assert found.keys() == {one.uid for one in expected}
    for one in expected:
        winner = found[one.uid]
        assert (winner.problem, winner.candidate, winner.environment) == (one.problem, one.candidate, one.environment)
        assert winner.artifact_hash == one.artifact_hash
    assert read_winners(url, "softmax", {"gpu": "another"}, "cold", 60).count == 0
    assert read_winners(url, "softmax", make.environment.hardware, "hot", 60).count == 0
    assert read(url, make).url == store.url


@pytest.mark.parametrize("name", ["v1", "v1_comparisons", "v2", "v3", "v4", "v5", "v6"])
def test_a_file_of_every_version_is_read_as_it_is(tmp_path: Path, make: Any, name: str) -> None:
    path = tmp_path / "tuning.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript((Path(__file__).parent / "fixtures" / f"{name}.sql").read_text())
    before = path.read_bytes()
    (winner,) = winners_of(read(path, make))
    assert winner.candidate == make.candidate(8)
    assert winner.transfers == ({"cols": Transfer(513, 1024, ("abc",))} if name in {"v3", "v4", "v5", "v6"} else {})
    assert winner.artifact_hash == ("abab" if name == "v6" else "")
    assert path.read_bytes() == before


def test_a_file_is_read_without_sqlalchemy(file: Path, environment_variables: dict[str, str]) -> None:
    code = (
        "import sys; from tuning_db.snapshot import read_winners\n"
        "hardware = {'gpu': 'H200', 'sms': 132, 'mig': False}\n"
        f"print(read_winners({str(file)!r}, 'softmax', hardware, 'cold', 60).count, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment_variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]


# --- whatever is there in place of a database


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
        raw.execute("BEGIN EXCLUSIVE")
        yield


def test_a_locked_file_is_not_waited_for(file: Path, make: Any) -> None:
    with locked(file), pytest.raises((BusyDatabaseError, UnreachableDatabaseError), match=r"held|did not answer"):
        read(file, make, SECONDS)
    assert read(file, make).count == 1


def make_view_endless(file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.executescript(
            "ALTER TABLE winner RENAME TO old;"
            "CREATE VIEW winner AS WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many)"
            " SELECT 1 AS problem_id, 1 AS hardware_id, 1 AS software_id, 'cold' AS regime, n AS decision_id FROM many;"
        )


def make_foreign(file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("ALTER TABLE tuning_db_version RENAME TO other")


def make_newer(file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE tuning_db_version SET version_num = '0099'")
        raw.commit()


def make_half(file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA foreign_keys=OFF")
        raw.execute("DROP TABLE candidate")


def make_damaged(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096 : 4096 * 8] = os.urandom(4096 * 7)
    file.write_bytes(data)


def make_text(file: Path) -> None:
    file.write_text("results of last week\n" * 100)


def make_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (make_view_endless, CorruptedDatabaseError, "winner is a view, expected a table"),
        (make_foreign, ForeignDatabaseError, "belongs to another application"),
        (make_newer, NewerSchemaError, "schema version 99"),
        (make_half, CorruptedDatabaseError, "candidate is missing, expected a table"),
        (make_damaged, CorruptedDatabaseError, "is damaged"),
        (make_text, CorruptedDatabaseError, "not a SQLite database"),
        (make_fifo, UnreachableDatabaseError, "is a FIFO, expected a file"),
        (make_empty, MissingDatabaseError, "holds no tuning results"),
        (Path.unlink, MissingDatabaseError, "there is no database"),
    ],
)
def test_what_is_no_database_of_ours_is_refused(
    file: Path, make: Any, change: Callable[[Path], None], kind: type[Exception], message: str
) -> None:
    change(file)
    with pytest.raises(kind, match=message):
        read(file, make)


def test_a_store_opens_no_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tuning.db")
    with pytest.raises(UnreachableDatabaseError, match="is a FIFO, expected a file"):
        Store.open(tmp_path / "tuning.db")


def test_a_files_own_views_may_call_nothing_unsafe(file: Path) -> None:
    with Store.open(file) as store, store._opened.reader.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA trusted_schema").scalar() == 0


def test_a_query_ends_at_the_deadline(file: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many) SELECT count(*) FROM many"
    monkeypatch.setattr("tuning_db.snapshot._WINNERS", f"FROM problem, winner, decision, ({endless})")
    with pytest.raises((BusyDatabaseError, UnreachableDatabaseError), match="did not answer"):
        read(file, make, SECONDS)
    left = [thread for thread in threading.enumerate() if "reads winners" in thread.name]
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()


def test_work_that_never_ends_is_left_alone() -> None:
    never = threading.Event()
    with pytest.raises(UnreachableDatabaseError, match=r"it did not answer within 0\.05 s"):
        within(0.05, "it", never.wait)
    never.set()


def test_a_table_that_a_server_has_locked_is_not_waited_for(postgresql_url: str, make: Any) -> None:
    import psycopg

    with Store.open(postgresql_url) as store:
        store.publish(store.start_run(make.environment), make.decision())
    with psycopg.connect(postgresql_url) as holding:
        holding.execute("LOCK TABLE winner IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Exception, match=r"did not answer within|statement timeout"):
            read(postgresql_url, make, SECONDS)
    assert read(postgresql_url, make).count == 1


def test_a_server_that_is_stopped_is_not_waited_for(postgresql_server: str, postgresql_url: str, make: Any) -> None:
    Store.open(postgresql_url).close()
    postmaster = int((Path(postgresql_server) / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableDatabaseError, match="did not answer within 1 s"):
            read(postgresql_url, make, SECONDS)
    finally:
        os.kill(postmaster, signal.SIGCONT)
    assert read(postgresql_url, make).count == 0


# --- rows


def test_a_row_is_decoded_when_it_is_asked_for(file: Path, make: Any) -> None:
    with Store.open(file) as store:
        store.publish(store.start_run(make.environment), make.decision(make.problem(rows=7), uid="sound"))
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE problem SET dims = CAST(x'ff' AS TEXT) WHERE id = 1")
        raw.commit()
    snapshot = read(file, make)
    assert sorted(str(dims) for dims in snapshot.dims(range(2)))[0] == "None"
    found = [place for place in range(2) if snapshot.columns[UID][place] == "sound"]
    assert snapshot.winner(found[0]).problem == make.problem(rows=7)
    with pytest.raises(InvalidRecordError, match=r"tuning\.db: the winner [0-9a-f]{32}: TypeError"):
        snapshot.winner(1 - found[0])


def test_of_equally_fast_candidates_one_is_the_best_in_whatever_order_they_are_stored() -> None:
    rows = [
        ("a", "f2", '{"n": 1}', 5.0),
        ("a", "f1", '{"n": 2}', 5.0),
        ("a", "f1", '{"n": 1}', 5.0),
        ("a", "f0", "{}", 6.0),
    ]
    for order in itertools.permutations(rows):
        assert best_of_each(order) == {"a": CandidateKey("a", "f1", {"n": 1})}

"""Several processes on one database, and a process that forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Store
from tuning_db.snapshot import read_winners

from .conftest import Script

WRITER = Path(__file__).with_name("writer.py")


def write_together(place: str, processes: int, trials: int, variables: dict[str, str]) -> list[str]:
    """Starts writers that open ``place`` at the same moment; returns what each printed."""
    done = subprocess.run(
        [sys.executable, WRITER, place, str(processes), str(trials)],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_eight_processes_open_one_cold_file_and_lose_nothing(
    tmp_path: Path, environment_variables: dict[str, str]
) -> None:
    path = tmp_path / "cold" / "tuning.db"
    results = write_together(str(path), 8, 6, environment_variables)
    assert sorted(results) == ["lost"] * 7 + ["won"]
    with Store.open(path, create=False) as store:
        assert {trial.message for trial in store.trials()} == {f"{n}/{i}" for n in range(8) for i in range(6)}
        counts = store.statistics()
        assert (counts.runs, counts.problems, counts.decisions, counts.winners) == (8, 1, 8, 1)


@pytest.mark.thorough
def test_several_processes_fill_one_cold_server(postgresql_url: str, environment_variables: dict[str, str]) -> None:
    results = write_together(postgresql_url, 4, 6, environment_variables)
    assert sorted(results) == ["lost"] * 3 + ["won"]
    with Store.open(postgresql_url, create=False) as store:
        assert {trial.message for trial in store.trials()} == {f"{n}/{i}" for n in range(4) for i in range(6)}


FORKING = """
import os, sys
from tuning_db import Environment, Store
with Store.open(sys.argv[1]) as store:
    store.start_run(Environment({"who": "parent"}, {}))
    child = os.fork()
    if child == 0:
        store.start_run(Environment({"who": "child"}, {}))
        assert len(store.runs()) >= 2
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    store.start_run(Environment({"who": "parent again"}, {}))
    print(sorted(run.environment.hardware["who"] for run in store.runs()))
"""


@pytest.mark.few(1)
def test_a_forked_child_and_its_parent_both_go_on(url: str, environment_variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, url],
        capture_output=True,
        text=True,
        check=False,
        env=environment_variables,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "['child', 'parent', 'parent again']"


OPENED_AND_CLOSED = """
import sys
from tuning_db import Environment, Store
with Store.open(sys.argv[1]) as store:
    store.start_run(Environment({}, {}))
"""


def test_another_look_at_an_open_file_leaves_its_locks(file: Path, make: Any, script: Script) -> None:
    with Store.open(file) as store:
        store.start_run(make.environment)
        read_winners(file, "softmax", make.environment.hardware, "cold", 10.0)
        Store.open(file).close()
        # whoever closes a file that nobody else has locked removes its log, to which this process still writes
        script(OPENED_AND_CLOSED, [str(file)])
        store.start_run(make.environment)
        with Store.open(file) as another:
            assert len(another.runs(10)) == len(store.runs(10)) == 4
        script(OPENED_AND_CLOSED, [str(file)])
    with Store.open(file) as store:
        assert len(store.runs(10)) == 5


def test_a_reader_is_not_kept_waiting_by_a_writer(file: Path, make: Any) -> None:
    import sqlite3

    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        with Store.open(file, create=False, migrate=False) as store:
            assert len(store.trials()) == 1
            assert store.winner(make.problem(), make.environment.hardware, {}) is not None
    finally:
        connection.close()


@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.few(1)
def test_a_crashed_writers_transaction_is_rolled_back(
    file: Path, journal: str, environment_variables: dict[str, str]
) -> None:
    source = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("PRAGMA cache_spill=1")
connection.execute("PRAGMA cache_size=1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE trial SET message = 'torn'")
connection.execute("CREATE TABLE half (blob)")
connection.execute("INSERT INTO half WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<2000)"
                   " SELECT randomblob(1000) FROM n")
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", source, file, journal], check=False, env=environment_variables)
    left = [entry.name for entry in file.parent.iterdir() if entry.name != file.name]
    assert f"tuning.db-{'wal' if journal == 'wal' else 'journal'}" in left
    with Store.open(file) as store:
        (trial,) = store.trials()
        assert trial.message == ""

"""Real databases for the store's tests: a SQLite file, and a PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tuning_db
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store, Trial

BINARIES = Path("/usr/lib/postgresql/15/bin")
ROOT = os.geteuid() == 0
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if ROOT else []
"""PostgreSQL refuses to run as root."""
OVERRIDES = "-dac_override,-dac_read_search"
BOUND = ["setpriv", f"--bounding-set={OVERRIDES}", f"--inh-caps={OVERRIDES}"] if ROOT else []
"""Permissions bind root without these capabilities, and it still reaches its own private folders."""


@dataclass(frozen=True)
class Make:
    """Records as the tuner makes them."""

    environment: Environment
    protocol: Protocol

    def problem(self, rows: int = 4096, cols: int = 8192, op: str = "softmax", **dims: Any) -> ProblemKey:
        named = {"rows": rows, "cols": cols, "dtype": "bfloat16", **dims}
        return ProblemKey(op, 1, named, ("cols", "dtype"))

    def candidate(
        self, num_warps: int = 4, implementation: str = "triton.row", fingerprint: str = "f1"
    ) -> CandidateKey:
        return CandidateKey(implementation, fingerprint, {"num_warps": num_warps})

    def trial(self, problem: ProblemKey | None = None, num_warps: int = 4, **values: Any) -> Trial:
        defaults: dict[str, Any] = {"status": "ok", "median_us": 10.5, "samples": (10.0, 11.0)}
        defaults |= {"environment": self.environment, "protocol": self.protocol}
        return Trial(problem or self.problem(), self.candidate(num_warps), **(defaults | values))

    def decision(self, problem: ProblemKey | None = None, num_warps: int = 4, **values: Any) -> Decision:
        defaults: dict[str, Any] = {"median_us": 10.5, "floor_us": 9.0, "verdict": "first"}
        defaults |= {"environment": self.environment, "protocol": self.protocol}
        return Decision(problem or self.problem(), candidate=self.candidate(num_warps), **(defaults | values))


@pytest.fixture(scope="session")
def make() -> Make:
    hardware = {"gpu": "H200", "sms": 132, "mig": False}
    return Make(
        Environment(hardware, {"torch": "2.11", "triton": "3.6"}),
        Protocol("cold", {"flush_bytes": 2**28, "target_us": 1e5}),
    )


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The folder of a running server's socket; it listens nowhere else."""
    with cluster() as folder, serving(folder):
        yield str(folder)


@contextmanager
def cluster() -> Iterator[Path]:
    """The folder of a new server that does not run yet."""
    if not (BINARIES / "initdb").exists():
        pytest.skip(f"PostgreSQL 15 is not installed ({BINARIES})")
    pytest.importorskip("psycopg", reason="the postgresql extra is not installed")
    if ROOT and shutil.which("setpriv") is None:
        pytest.skip("running as root, and there is no setpriv to become somebody else")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=_reached_by_server()))
    if ROOT:
        os.chown(folder, 65534, 65534)
    make = [BINARIES / "initdb", "-D", folder / "data", "-A", "trust", "-U", "tuner", "--no-sync", "-E", "UTF8"]
    try:
        with (folder / "log").open("w") as log:
            subprocess.run([*AS_NOBODY, *make], check=True, cwd=folder, stdout=log, stderr=log)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """The server of a cluster runs; at the end it is killed as by a crash."""
    settings = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "max_connections=60"]
    options = [part for setting in settings for part in ("-c", setting)]
    command = [*AS_NOBODY, BINARIES / "postgres", "-D", folder / "data", *options]
    with (folder / "log").open("a") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            _wait_for(folder, server)
            yield
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing in it is to be kept
            server.wait(30)


def _reached_by_server() -> Path:
    """A folder for temporary files that PostgreSQL's user can enter: TMPDIR may be private."""
    for folder in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):
        if folder.is_dir() and not subprocess.run([*AS_NOBODY, "test", "-x", folder], check=False).returncode:
            return folder
    pytest.skip("PostgreSQL does not run as root, and its user can enter no folder for temporary files")


def _wait_for(folder: Path, server: subprocess.Popen[bytes]) -> None:
    ready = [str(BINARIES / "pg_isready"), "-q", "-h", str(folder), "-U", "tuner", "-d", "postgres"]
    for _ in range(300):
        if server.poll() is not None:
            break
        if subprocess.run(ready, check=False).returncode == 0:
            return
        time.sleep(0.1)
    pytest.fail(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}")


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """An empty database."""
    import psycopg

    with psycopg.connect(host=postgresql_server, user="tuner", dbname="postgres", autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return f"postgresql://tuner@/postgres?host={postgresql_server}"


EMPTY = """
SET session_replication_role = replica; -- no row is asked whether another refers to it
DO $$ DECLARE one text; BEGIN
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'tuning_db_version' LOOP
        EXECUTE format('DELETE FROM %I', one);
    END LOOP;
END $$;
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences;
"""
"""Leaves the tables of a store on a server, and no rows in them, as if they had just been made."""


@pytest.fixture(scope="session")
def server_with_tables(postgresql_server: str) -> Iterator[Any]:
    """A connection to a database on the server that has the tables of a store."""
    import psycopg

    with psycopg.connect(host=postgresql_server, user="tuner", dbname="postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE with_tables")
    with Store.open(f"postgresql://tuner@/with_tables?host={postgresql_server}"):
        pass
    with psycopg.connect(host=postgresql_server, user="tuner", dbname="with_tables", autocommit=True) as connection:
        yield connection


@pytest.fixture
def emptied_url(server_with_tables: Any, postgresql_server: str) -> str:
    """A database that has its tables and nothing in them: to make these takes 0.1 s of a core, to empty them less."""
    server_with_tables.execute(EMPTY)
    return f"postgresql://tuner@/with_tables?host={postgresql_server}"


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a database of that kind: with its tables if a fixture is to open it, else without."""
    opened = not {"store", "queue"}.isdisjoint(request.fixturenames)
    if kind == "postgresql":
        return str(request.getfixturevalue("emptied_url" if opened else "postgresql_url"))
    if opened:
        shutil.copy(request.getfixturevalue("_new_database"), folder / "tuning.db")
    return f"sqlite:///{folder / 'tuning.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place without a database's tables, unless a fixture opens it as a store, once of each kind."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A fresh store, once of each kind."""
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def _file(tmp_path_factory: pytest.TempPathFactory, make: Make) -> Path:
    path = tmp_path_factory.mktemp("file") / "tuning.db"
    with Store.open(path) as opened:
        run = opened.start_run(make.environment)
        opened.add_trials(run, [make.trial()])
        opened.publish(run, make.decision())
    return path


@pytest.fixture
def file(tmp_path: Path, _file: Path) -> Path:
    """A closed SQLite store that holds one trial and one winner."""
    return Path(shutil.copy(_file, tmp_path / "tuning.db"))


Script = Callable[[str, Sequence[str]], str]


@pytest.fixture(scope="session")
def unprivileged() -> list[str]:
    """What to put before a command so that permissions bind it."""
    if ROOT and (shutil.which("setpriv") is None or subprocess.run([*BOUND, "true"], check=False).returncode):
        pytest.skip("running as root, and there is no setpriv that takes its privileges away")
    return BOUND


@pytest.fixture
def script(unprivileged: list[str]) -> Script:
    """Runs Python source with arguments in a process that permissions bind, and returns what it printed."""

    def run(source: str, arguments: Sequence[str]) -> str:
        done = subprocess.run(
            [*unprivileged, sys.executable, "-c", source, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment_variables(),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def environment_variables() -> dict[str, str]:
    """Ours, with which a child finds the same tuning_db."""
    here = str(Path(tuning_db.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(name="environment_variables")
def environment_variables_fixture() -> dict[str, str]:
    return environment_variables()

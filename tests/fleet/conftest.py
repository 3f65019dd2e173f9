"""Real workers of a fleet: processes of ``registry fleet work``, on SQLite or on a PostgreSQL server of our own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from registry.discovery.catalog import Catalog
from registry.fleet.planner import Planned, plan_fleet
from registry.problem import Problem
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from tuning_db import JobQueue

from ..tuning_db.conftest import cluster, serving

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "tuner" / "repeated.py"
NAME = "repeated.any"
CONFIGS = 24


def square(n: int) -> Problem:
    return Problem("square", {"n": n, "dtype": "float32"})


def with_plugin(path: Path = PLUGIN) -> Catalog:
    catalog = Catalog()
    catalog.load_file(path)
    return catalog


def queue_squares(
    queue: JobQueue, sizes: Sequence[int], trials: int = 3, job_size: int = 1, attempts: int = 3, retune: bool = False
) -> Planned:
    """Queue problems for the CPU that a plugin file's implementation solves, ``job_size`` in a job."""
    options = TuneOptions(Budget(trials=trials), implementations=[NAME], retune=retune)
    return plan_fleet(
        queue, [square(n) for n in sizes], ["cpu"], catalog=with_plugin(), options=options,
        most_problems=job_size, most_attempts=attempts,
    )  # fmt: skip


COUNTS_VARIABLE = "FLEET_FAULTS_COUNTS"
"""Names the file to which ``benchmarks.scale.fleet_faults`` has the counts of each fault appended."""


def counted(**counts: int) -> None:
    """Append what a fault has cost, as a line of JSON with the test's name, where a file is named."""
    if path := os.environ.get(COUNTS_VARIABLE):
        test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition(" ")[0]
        with Path(path).open("a") as file:
            file.write(json.dumps({"test": test, **counts}) + "\n")


class WorkerProcess:
    """One ``registry fleet work``."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path, limit_bytes: int | None) -> None:
        self._log = log
        if limit_bytes is not None:
            command = ["sh", "-c", f'ulimit -f {limit_bytes // 512}; exec "$@"', "sh", *command]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    @property
    def told(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ends()

    def ends(self, limit_s: float = 240) -> int:
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker still runs:\n{self.told}")


class Workers:
    """Starts workers on one database; each is killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[WorkerProcess] = []

    def start(
        self,
        url: str,
        *options: str,
        plugin: Path = PLUGIN,
        environment: dict[str, str] | None = None,
        limit_bytes: int | None = None,
    ) -> WorkerProcess:
        command = [sys.executable, "-m", "registry.cli.main", "fleet", "work", "--db", url, "--device", "cpu"]
        path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
        variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
        log = self._folder / f"worker{len(self._started)}.log"
        found = WorkerProcess([*command, "--plugin", str(plugin), *options], variables, log, limit_bytes)
        self._started.append(found)
        return found

    def close(self) -> None:
        for one in self._started:
            one.kill()


def wait_for(reached: Callable[[], bool], worker: WorkerProcess, limit_s: float = 120) -> None:
    """Wait until that holds; the worker must not end before."""
    until = time.monotonic() + limit_s
    while not reached():
        assert worker.process.poll() is None, worker.told
        assert time.monotonic() < until, worker.told
        time.sleep(0.05)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path)
    yield found
    found.close()


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """The folder of a server that does not run yet."""
    with cluster() as folder:
        yield folder


@pytest.fixture
def server_url(server_folder: Path) -> Iterator[str]:
    """The empty database of a running server."""
    with serving(server_folder):
        yield address(server_folder)


def address(folder: Path) -> str:
    return f"postgresql://tuner@/postgres?host={folder}"


@pytest.fixture
def file_queue(tmp_path: Path) -> Iterator[JobQueue]:
    with JobQueue.open(tmp_path / "tuning.db") as queue:
        yield queue

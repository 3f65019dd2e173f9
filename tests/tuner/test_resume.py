"""Runs that are killed and started again, and runs side by side on one database: nothing lost, nothing done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Store

SERVER = Path(__file__).with_name("tuning.py")
CONFIGS = 24

if sys.platform != "linux":
    pytest.skip("children are found through /proc", allow_module_level=True)


class Run:
    """One tuning run in a process of its own."""

    def __init__(self, pid: int, events: Path) -> None:
        self.pid = pid
        self._events = events

    def said(self) -> list[dict[str, Any]]:
        text = self._events.read_text() if self._events.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def trials(self) -> int:
        return sum(event["event"] == "TrialDone" for event in self.said())

    def wait_for(self, name: str, count: int = 1) -> None:
        """Until it has said ``name`` so often, or has ended."""
        while sum(event["event"] == name for event in self.said()) < count and alive(self.pid):
            time.sleep(0.005)

    def results(self) -> list[Any]:
        """Waits for its end, and what it found."""
        while alive(self.pid):
            time.sleep(0.02)
        last = self.said()[-1]
        assert last["event"] == "results", last.get("fault", last)
        return list(last["results"])

    def kill(self) -> list[int]:
        """Kills it alone; returns the processes that it had started, and that these had."""
        family = descendants(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        return family


class Runs:
    """Starts runs on one database."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._count = 0
        self.database = folder / "runs.db"

    def start(self, *sizes: int) -> Run:
        self._count += 1
        events = self._folder / f"events{self._count}"
        order = {"events": str(events), "database": str(self.database), "sizes": sizes, "trials": CONFIGS}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return Run(int(self._server.stdout.readline()), events)

    def stored(self) -> Counter[tuple[int, int]]:
        """How often each candidate (size, repeats) was tried."""
        if not self.database.exists():
            return Counter()
        with Store.open(self.database) as store:
            trials = store.trials(op="square")
        return Counter((int(trial.problem.dims["n"]), trial.candidate.config["repeats"]) for trial in trials)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Runs(server, tmp_path)
        server.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(each for child in children for each in descendants(child))]


def vanish(pids: list[int]) -> bool:
    for _ in range(6000):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.01)
    return False


def test_a_run_killed_at_any_moment_goes_on_where_it_was(runs: Runs) -> None:
    chance = random.Random()
    size, done = 20_001, 0
    for moment in (chance.randint(1, 8), chance.randint(1, 8)):
        run = runs.start(size)
        run.wait_for("TrialDone", moment)
        time.sleep(chance.uniform(0, 0.05))
        family = run.kill()
        assert len(family) >= 2
        assert vanish(family)
        done += run.trials()
        # each trial that was told is stored; one more may have been stored and not told
        assert sum(runs.stored().values()) in {done, done + 1}
        done = sum(runs.stored().values())
    run = runs.start(size)
    run.wait_for("FinalsStarted")
    family = run.kill()
    assert vanish(family)
    assert runs.stored() == {(size, repeats): 1 for repeats in range(1, CONFIGS + 1)}
    last = runs.start(size)
    ((n, config, _),) = last.results()
    assert last.trials() == 0
    assert runs.stored() == {(size, repeats): 1 for repeats in range(1, CONFIGS + 1)}
    with Store.open(runs.database) as store:
        (winner,) = store.winners(op="square")
    assert (n, config) == (size, dict(winner.candidate.config))


def test_two_runs_on_the_same_problems_share_trials_and_store_one_winner_each(runs: Runs) -> None:
    sizes = (20_001, 30_001)
    both = [runs.start(*sizes), runs.start(*sizes)]
    results = [run.results() for run in both]
    stored = runs.stored()
    assert stored.keys() == {(size, repeats) for size in sizes for repeats in range(1, CONFIGS + 1)}
    assert sum(run.trials() for run in both) == sum(stored.values())
    # what was in flight in one when the other asked is tried twice; what is stored is not asked for again
    assert sum(stored.values()) < 2 * len(stored)
    with Store.open(runs.database) as store:
        decisions = store.winners(op="square")
        assert store.statistics().winners == len(sizes)
    winners = {int(decision.problem.dims["n"]): dict(decision.candidate.config) for decision in decisions}
    assert winners.keys() == set(sizes)
    assert all({n for n, _, _ in found} == set(sizes) for found in results)
    # whoever decided last says what is stored now
    for size in sizes:
        assert winners[size] in [config for found in results for n, config, _ in found if n == size]

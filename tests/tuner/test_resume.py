"""Runs that are killed and started again, and runs side by side on one database: nothing lost, nothing done twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Store

SERVER = Path(__file__).with_name("tuning.py")
CONFIGS = 24
SEED = int(os.environ.get("RESUME_SEED") or random.SystemRandom().randrange(2**32))
"""Of the moments at which runs are killed: others every time, unless the environment says which."""

if sys.platform != "linux":
    pytest.skip("children are found through /proc", allow_module_level=True)


class Run:
    """One tuning run in a process of its own, which has just been started."""

    def __init__(self, pid: int, events: Path) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)  # which no later process of that number answers to
        self._events = events

    @property
    def alive(self) -> bool:
        return not ended(self._handle)

    def said(self) -> list[dict[str, Any]]:
        text = self._events.read_text() if self._events.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def trials(self) -> int:
        return sum(event["event"] == "TrialDone" for event in self.said())

    def wait_for(self, name: str, count: int = 1) -> float:
        """Until it has said ``name`` so often, or has ended; returns how many seconds that took."""
        return self.wait_until(lambda: sum(event["event"] == name for event in self.said()) >= count)

    def wait_until(self, reached: Callable[[], bool], look_every_s: float = 0.005) -> float:
        """Until that holds, or it has ended; returns how many seconds that took."""
        began = time.monotonic()
        while not reached() and self.alive:
            time.sleep(look_every_s)
        return time.monotonic() - began

    def results(self) -> list[Any]:
        """Waits for its end, and what it found."""
        assert ended(self._handle, 280)
        last = self.said()[-1]
        assert last["event"] == "results", last.get("fault", last)
        return list(last["results"])

    def kill(self) -> list[int]:
        """Kills it alone, if it has not ended; returns handles of the processes that it, and they, had started."""
        family = handles(descendants(self.pid)) if self.alive else []
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        return family


Stage = Callable[[Run, Path], None]


class Server:
    """Starts processes that have imported the libraries; ``imports_s``: what that took it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout
        self.imports_s = float(self._answers.readline())

    def start(self, order: dict[str, Any]) -> int:
        """Returns the process id."""
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return int(self._answers.readline())


class Runs:
    """Starts runs on one database."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self.imports_s = server.imports_s
        self._count = 0
        self.database = folder / "runs.db"

    def start(self, *sizes: int, forked: bool = True) -> Run:
        """``forked``: with processes that need not import torch."""
        self._count += 1
        events = self._folder / f"events{self._count}"
        order = {"events": str(events), "database": str(self.database), "sizes": sizes, "trials": CONFIGS}
        # a cache of their own: the lock of the device in it is no other tests'
        environment = {**os.environ, "KERNEL_REGISTRY_CACHE": str(self._folder / "cache")}
        return Run(self._server.start(order | {"forked": forked, "environment": environment}), events)

    def stored(self) -> Counter[tuple[int, int]]:
        """How often each candidate (size, repeats) was tried."""
        if not self.database.exists():
            return Counter()
        with Store.open(self.database) as store:
            trials = store.trials(op="square")
        return Counter((int(trial.problem.dims["n"]), trial.candidate.config["repeats"]) for trial in trials)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Server(process)
        process.kill()


@pytest.fixture
def runs(server: Server, tmp_path: Path, no_plugins: None) -> Runs:
    return Runs(server, tmp_path)


def ended(handle: int, seconds: float = 0.0) -> bool:
    """Whether the process of a pidfd ends within ``seconds``."""
    return bool(select.select([handle], [], [], seconds)[0])


def handles(pids: list[int]) -> list[int]:
    """Of those that have not ended."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


def descendants(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(each for child in children for each in descendants(child))]


def vanish(family: list[int]) -> bool:
    until = time.monotonic() + 60
    gone = [ended(handle, max(0.0, until - time.monotonic())) for handle in family]
    for handle in family:
        os.close(handle)
    return all(gone)


class Moments:
    """Moments drawn by chance, in one stage of a run each: a method returns at one, or when the run has ended.

    How long a stage takes depends on the machine; what the earlier runs took says what a later one may.
    """

    def __init__(self, seed: int, imports_s: float) -> None:
        self._chance = random.Random(seed)
        self._imports_s = imports_s
        self._startup_s = self._trial_s = 0.0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In an order in which each leaves the next one something to do."""
        return (self.making_the_database, self.first_trials, self.startup, self.finals, self.publishing)

    @property
    def main_stages(self) -> tuple[Stage, ...]:
        """Those in which a run spends its time."""
        return (self.first_trials, self.finals)

    def making_the_database(self, run: Run, database: Path) -> None:
        run.wait_until(database.exists)
        self._sleep(0.2)

    def first_trials(self, run: Run, database: Path) -> None:
        self._startup_s = run.wait_for("ProblemStarted")
        run.wait_for("TrialDone")
        count = self._chance.randint(1, CONFIGS // 2)
        self._trial_s = run.wait_for("TrialDone", 1 + count) / count
        self._sleep(2 * self._trial_s)

    def startup(self, run: Run, database: Path) -> None:
        """With what a template imports meanwhile, and some of the trials that are left."""
        self._sleep(self._imports_s + self._startup_s + CONFIGS / 2 * self._trial_s)

    def finals(self, run: Run, database: Path) -> None:
        """They take as long as 9 to 12 trials; what is decided leaves nothing to publish."""
        run.wait_for("FinalsStarted")
        self._sleep(7 * self._trial_s)

    def publishing(self, run: Run, database: Path) -> None:
        """Nothing is stored from the first final on until then; the run's own end is stored soon after."""
        run.wait_for("FinalsStarted")
        log = database.with_name(f"{database.name}-wal")
        before = changed_at(log)
        run.wait_until(lambda: changed_at(log) != before, look_every_s=0.001)
        self._sleep(0.02)

    def _sleep(self, most_s: float) -> None:
        time.sleep(self._chance.uniform(0, most_s))


def changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@pytest.mark.thorough
def test_a_run_killed_in_its_search_or_its_finals_goes_on_where_it_was(runs: Runs) -> None:
    moments = Moments(SEED, runs.imports_s)
    kill_and_go_on(runs, moments, moments.main_stages)


@pytest.mark.thorough
def test_a_run_killed_at_any_moment_goes_on_where_it_was(runs: Runs) -> None:
    moments = Moments(SEED, runs.imports_s)
    kill_and_go_on(runs, moments, moments.stages)


def kill_and_go_on(runs: Runs, moments: Moments, stages: Sequence[Stage]) -> None:
    """Kill a run in each of the stages; what it told is stored, and the next one goes on with the rest."""
    print(f"to draw these moments again: RESUME_SEED={SEED}")  # noqa: T201  (a failure's report shows it)
    size, done = 10_001, 0
    decided = set[str]()
    for stage in stages:
        run = runs.start(size, forked=stage not in (moments.making_the_database, moments.startup))
        stage(run, runs.database)
        assert vanish(run.kill())
        stored = runs.stored()
        told = [event["event"] for event in run.said()]
        decided |= {event["verdict"] for event in run.said() if event["event"] == "ProblemDecided"}
        print(f"{stage.__name__}: {len(stored)} stored, {dict(Counter(told))}")  # noqa: T201
        assert "fault" not in told
        # each trial that was told is stored, once; one more may have been stored and not told
        assert set(stored.values()) <= {1}
        assert len(stored) - done in {run.trials(), run.trials() + 1}
        done = len(stored)
    for _ in range(3):
        last = runs.start(size)
        ((n, config, verdict),) = last.results()
        assert last.trials() == 0
        if verdict != "none":  # on a loaded machine finals may tell too little to decide
            break
    assert verdict == "kept" or decided <= {"none"}
    assert runs.stored() == {(size, repeats): 1 for repeats in range(1, CONFIGS + 1)}
    with Store.open(runs.database) as store:
        (winner,) = store.winners(op="square")
    assert (n, config) == (size, dict(winner.candidate.config))


# test_storing.py, test_trial_batches.py and decide/test_finals.py have what two runs share, without processes
@pytest.mark.thorough
def test_two_runs_on_the_same_problems_share_trials_and_store_one_winner_each(runs: Runs) -> None:
    sizes = (10_001, 5_001)
    both = [runs.start(*sizes), runs.start(*sizes)]
    results = [run.results() for run in both]
    stored = runs.stored()
    assert stored.keys() == {(size, repeats) for size in sizes for repeats in range(1, CONFIGS + 1)}
    assert set(stored.values()) == {1}
    # what was in flight in one when the other asked is tried twice, though stored once; what is stored is not asked
    # for again. Of the 48 candidates 14 to 24 were tried twice when these runs began together on two cores
    tried = sum(run.trials() for run in both)
    print(f"{tried} tried, {len(stored)} stored")  # noqa: T201
    assert len(stored) <= tried <= 5 / 3 * len(stored)
    with Store.open(runs.database) as store:
        decisions = store.winners(op="square")
        assert store.statistics().winners == len(sizes)
    winners = {int(decision.problem.dims["n"]): dict(decision.candidate.config) for decision in decisions}
    assert winners.keys() == set(sizes)
    assert all({n for n, _, _ in found} == set(sizes) for found in results)
    # whoever decided last says what is stored now
    for size in sizes:
        assert winners[size] in [config for found in results for n, config, _ in found if n == size]

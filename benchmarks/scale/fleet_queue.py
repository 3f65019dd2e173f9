"""The load of a fleet on one database: simulated workers lease, renew, store trials and complete jobs.

    python -m benchmarks.scale.fleet_queue --db postgresql://user@host/database [--workers 8,64,200,512] [--seconds 60]
        [--speedup 1] [--alone] [--out benchmarks/results/cpu/fleet_queue.json]

A worker does everything but measure: what it would wait for is slept, ``--speedup`` times as fast as recorded. It joins
at some moment of the first half, and is then somewhere in its first job. Workers are threads of a few processes, each
with connections as a real worker has them. The server must take two connections a worker. Trials are written together,
as runs do it on a server; ``--alone`` writes each in a transaction of its own. ``pace`` is the share of the time after
joining in which a worker did not wait for the database.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from registry.tuner.patience import Patience
from registry.tuner.trial_batches import TrialBatches
from tuning_db import CandidateKey, Environment, JobQueue, ProblemKey, Protocol, Store, Trial
from tuning_db.queue.entries import FleetPlan, FleetWorker, Lease, NewJob, QueuedProblem
from tuning_db.records import new_uid

from ..arguments import output_file

DEVICE = "NVIDIA H200"
RECORDED = ((73, 35, 997), (33, 24, 720), (60, 22, 733), (23, 19, 380), (24, 9, 197))
"""(seconds, problems, trials) of runs of ``tune`` on an H200, see benchmarks/results/h200/runs.txt."""
JOB_SIZE = 8
RENEW_S = 30.0
PROCESSES = 8
"""Most processes that the simulated workers share."""


@dataclass
class Latencies:
    """Seconds of each transaction, by kind."""

    lease: list[float] = field(default_factory=list)
    renew: list[float] = field(default_factory=list)
    trial: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    jobs: int = 0
    trials: int = 0
    slept_s: float = 0.0

    def timed(self, kind: str, act: Callable[[], Any]) -> Any:
        """The result of ``act``, whose time is kept."""
        began = time.perf_counter()
        result = act()
        getattr(self, kind).append(time.perf_counter() - began)
        return result


@dataclass(frozen=True)
class SimulatedWorker:
    """One worker for ``seconds``; ``speedup`` times as fast as a real one."""

    database: str
    number: int
    seconds: float
    speedup: float
    together: bool = True

    def run(self) -> Latencies:
        found, patiently = Latencies(), Patience(seconds=300)
        record = FleetWorker(new_uid(), f"node{self.number}", self.number, DEVICE, f"GPU{self.number}")
        with patiently(lambda: JobQueue.open(self.database, migrate=False)) as queue:
            patiently(lambda: queue.register(record))
            with patiently(lambda: Store.open(self.database, migrate=False)) as store:
                environment = Environment({"gpu": DEVICE}, {"torch": "2.11"})
                run = patiently(lambda: store.start_run(environment))
                until = time.monotonic() + self.seconds
                time.sleep(random.uniform(0, self.seconds / 2))
                part = random.random()
                while time.monotonic() < until:
                    plans = patiently(lambda: list(queue.open_plans([DEVICE])))
                    asked = partial(queue.lease, record.uid, [DEVICE], plans, 180)
                    lease = found.timed("lease", partial(patiently, asked))
                    if lease is None:
                        break
                    self._work(lease, queue, store, run, environment, found, until, part)
                    part = 1.0
        return found

    def _work(
        self,
        lease: Lease,
        queue: JobQueue,
        store: Store,
        run: str,
        environment: Environment,
        found: Latencies,
        until: float,
        part: float,
    ) -> None:
        renewed, patiently = time.monotonic(), Patience(seconds=300)
        seconds, problems, trials = random.choice(RECORDED)

        def write(new: Sequence[Trial]) -> Sequence[Trial]:
            add = partial(store.add_new_trials, run, new, since=0, statuses={"ok"})
            found.trials += len(new)
            stored: Sequence[Trial] = found.timed("trial", partial(patiently, add))
            return stored

        batches = TrialBatches(write, together=self.together)
        for problem in lease.problems:
            key = ProblemKey(problem.op, 1, problem.dims)
            for number in range(math.ceil(part * trials / problems)):
                time.sleep(seconds / trials / self.speedup)
                found.slept_s += seconds / trials / self.speedup
                candidate = CandidateKey("triton.row", "f" * 16, {"num_warps": number})
                trial = Trial(
                    key, candidate, environment=environment, protocol=Protocol("cold"), status="ok", median_us=10.0,
                    samples=(10.0,) * 20,
                )  # fmt: skip
                batches.add(trial)
                if time.monotonic() - renewed > RENEW_S / self.speedup:
                    renewed = time.monotonic()
                    assert found.timed("renew", lambda: patiently(lambda: queue.renew(lease.fence, 180)))
                if time.monotonic() > until:
                    batches.write()
                    patiently(lambda: queue.hand_back(lease.fence, "the benchmark is over"))
                    return
        batches.write()
        assert found.timed("complete", lambda: patiently(lambda: queue.complete(lease.fence)))
        found.jobs += 1


def measure(database: str, workers: int, seconds: float, speedup: float, *, together: bool = True) -> dict[str, Any]:
    """The load of so many workers; latencies in ms."""
    with JobQueue.open(database) as queue:
        least = JOB_SIZE * min(seconds / problems for seconds, problems, _ in RECORDED)
        count = workers * (2 + int(seconds * speedup / least))
        first = int(time.time()) << 20
        problems = [
            QueuedProblem("softmax", {"rows": first + number, "cols": 8192}) for number in range(JOB_SIZE * count)
        ]
        queue.add(
            FleetPlan(new_uid(), "benchmark"),
            [NewJob(DEVICE, problems[start : start + JOB_SIZE]) for start in range(0, len(problems), JOB_SIZE)],
        )
    shares = [range(start, workers, min(PROCESSES, workers)) for start in range(min(PROCESSES, workers))]
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(len(shares)) as pool:
        parts = pool.starmap(_simulate, [(database, list(share), seconds, speedup, together) for share in shares])
    elapsed = time.monotonic() - began
    every = [one for part in parts for one in part]
    kinds = ("lease", "renew", "trial", "complete")
    taken = {kind: [us for one in every for us in getattr(one, kind)] for kind in kinds}
    transactions, trials = sum(map(len, taken.values())), sum(one.trials for one in every)
    slept, waited = sum(one.slept_s for one in every), sum(map(sum, taken.values()))
    return {
        "workers": workers, "seconds": round(elapsed, 1), "jobs": sum(one.jobs for one in every),
        "trials": trials, "trials_a_second": round(trials / elapsed, 1),
        "transactions": transactions, "transactions_a_trial": round(transactions / max(trials, 1), 3),
        "transactions_a_second": round(transactions / elapsed, 1),
        "transactions_a_worker_and_second": round(transactions / workers / (0.75 * seconds), 3),
        "pace": round(slept / (slept + waited), 3),
        **{f"{kind}_ms": _summary(values) for kind, values in taken.items()},
    }  # fmt: skip


def _simulate(database: str, numbers: list[int], seconds: float, speedup: float, together: bool) -> list[Latencies]:
    threading.stack_size(1 << 20)
    with ThreadPoolExecutor(len(numbers)) as pool:
        simulated = [SimulatedWorker(database, number, seconds, speedup, together) for number in numbers]
        return list(pool.map(SimulatedWorker.run, simulated))


def _summary(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"median": round(1e3 * cuts[49], 2), "p99": round(1e3 * cuts[98], 2), "count": len(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", required=True, metavar="URL")
    parser.add_argument("--workers", default="8,64,200,512", metavar="N,...")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--alone", action="store_true", help="write each trial in a transaction of its own")
    parser.add_argument("--out", type=output_file)
    arguments = parser.parse_args()
    rows = []
    for workers in map(int, arguments.workers.split(",")):
        found = measure(
            arguments.db, workers, arguments.seconds, arguments.speedup, together=not arguments.alone
        )  # fmt: skip
        rows.append(found)
        print(json.dumps(rows[-1]), flush=True)
    environment = {
        "date": datetime.now(UTC).date().isoformat(), "cores": os.cpu_count(), "machine": platform.machine(),
        "python": platform.python_version(), "server": _server(arguments.db), "speedup": arguments.speedup,
        "trials_written": "alone" if arguments.alone else "together",
    }  # fmt: skip
    if arguments.out:
        arguments.out.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


def _server(database: str) -> str:
    from sqlalchemy import text

    with Store.open(database, migrate=False) as store, store._opened.reading() as session:
        query = "SHOW server_version" if database.startswith("postgresql") else "SELECT sqlite_version()"
        return f"{session.get_bind().dialect.name} {session.execute(text(query)).scalar()}"


if __name__ == "__main__":
    main()

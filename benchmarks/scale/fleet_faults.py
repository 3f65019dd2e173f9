"""The faults of a fleet, each injected several times into real workers on a real server: what each has cost.

    python -m benchmarks.scale.fleet_faults [--times 3] [--ray] [--out benchmarks/results/cpu/fleet_faults.md]

Runs the tests of tests/fleet, which count jobs, decisions and trials, and sums up what they counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..arguments import output_file

TESTS = Path(__file__).parents[2] / "tests" / "fleet"
VARIABLE = "FLEET_FAULTS_COUNTS"
FAULTS = {
    "test_a_killed_workers_job_is_finished_by_another": "a worker is killed (SIGKILL)",
    "test_a_worker_that_is_told_to_stop_gives_its_job_back": "a worker is told to stop (SIGTERM)",
    "test_a_server_that_is_away_for_a_while_costs_nothing": "PostgreSQL is killed, and away for a minute",
    "test_clocks_an_hour_off_expire_nothing": "two workers, clocks an hour ahead and behind",
    "test_a_node_with_another_plugin_refuses_and_wins_nothing": "a plugin of another version",
    "test_a_worker_whose_disk_is_full_leaves_and_its_job_goes_on_elsewhere": "a full disk",
    "test_a_worker_cut_off_by_a_stalled_network_decides_nothing": "a network that stalls",
    "test_two_hundred_workers_share_one_server_that_takes_sixty_connections": "200 workers, 60 connections",
    "test_a_node_that_is_lost_is_replaced_by_one_that_joins": "a node of the Ray cluster is removed",
    "test_a_head_that_is_started_again_finds_the_jobs_in_the_database": "the head of the Ray cluster is started again",
}
"""Test -> the fault that it injects once."""
COLUMNS = ("jobs", "jobs_lost", "decided", "decided_twice", "trials_before", "trials_lost", "trials_repeated")


def counts_of(times: int, *, ray: bool) -> tuple[list[dict[str, Any]], int]:
    """The lines that the tests have written, of so many runs, and how many of the runs had a test that failed."""
    wanted = " or ".join(FAULTS)
    files = [TESTS / "test_faults.py"] + ([TESTS / "on_ray" / "test_driving.py"] if ray else [])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--thorough", "-k", wanted, *map(str, files)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "counts"
        written.touch()
        for _ in range(times):
            done = subprocess.run(command, env={**os.environ, VARIABLE: str(written)}, check=False)
            failed += done.returncode != 0
        return [json.loads(line) for line in written.read_text().splitlines()], failed


def table(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows of Markdown, one for each fault that was injected."""
    summed: dict[str, Counter[str]] = {}
    for line in lines:
        summed.setdefault(str(line["test"]), Counter()).update({"times": 1, **{k: line.get(k, 0) for k in COLUMNS}})
    named = ("fault", "times", *(name.replace("_", " ") for name in COLUMNS))
    rows = [f"| {' | '.join(named)} |", f"| --- |{' ---: |' * (1 + len(COLUMNS))}"]
    for test, fault in FAULTS.items():
        if counts := summed.get(test):
            rows.append(f"| {fault} | {' | '.join(str(counts[name]) for name in ('times', *COLUMNS))} |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--ray", action="store_true", help="also the faults of a Ray cluster")
    parser.add_argument("--out", type=output_file)
    arguments = parser.parse_args()
    lines, failed = counts_of(arguments.times, ray=arguments.ray)
    here = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end, Python {platform.python_version()}"
    told = [f"$ python -m benchmarks.scale.fleet_faults --times {arguments.times}{' --ray' * arguments.ray}", ""]
    told += [*table(lines), "", f"{failed} of {arguments.times} runs had a test that failed.", ""]
    told += ["`trials before`: stored when the fault came. `trials repeated`: a candidate that was right twice.", ""]
    told += [f"PostgreSQL 15 on this machine; {here}; {datetime.now(UTC).date().isoformat()}"]
    print(*told, sep="\n")
    if arguments.out:
        arguments.out.write_text("\n".join(told) + "\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

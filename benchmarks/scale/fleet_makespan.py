"""How long a fleet of so many GPUs takes for a plan: simulated from recorded job times and the database's own cost.

    python -m benchmarks.scale.fleet_makespan [--shapes configs/llm.yaml] [--workers 1,8,64,512] [--repeats 1,10]
        [--load benchmarks/results/cpu/fleet_queue.json] [--out benchmarks/results/cpu/fleet_makespan.md]

Jobs are those that the planner makes of the shapes file for an H200; ``--repeats`` queues it so many times, as for
several models of GPU or releases. The seconds of a problem are drawn from recorded runs of ``tune``. A worker takes the
next job when it has done one. Waiting for the database stretches a job as ``fleet_queue`` has measured it for the
nearest number of workers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from registry.discovery.catalog import Catalog
from registry.fleet.grouping import device_named, grouped, variants_of_defaults
from registry.tuner.planning.ranges import represented
from registry.tuner.shapes.shapes import read_shapes

from ..arguments import output_file
from .fleet_queue import DEVICE, JOB_SIZE, RECORDED

_SEED = 1


def job_sizes(shapes: str) -> list[int]:
    """The numbers of problems of the jobs that the planner makes, in the order in which they are leased."""
    catalog, device = Catalog(), device_named(DEVICE)
    assert device is not None
    told = read_shapes(shapes, catalog)
    problems = represented(told.all, told.counts, catalog.op, every=False).problems
    variants = variants_of_defaults(problems, catalog, device, ())
    return [len(job) for job in grouped(problems, {}, catalog, JOB_SIZE, variants)]


def job_seconds(sizes: Sequence[int]) -> list[float]:
    """A time for each job: its problems take as long as those of a recorded run."""
    draw = random.Random(_SEED)
    return [size * seconds / problems for size in sizes for seconds, problems, _ in [draw.choice(RECORDED)]]


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Seconds until the last job is done; each worker takes the next job when it has done one."""
    free = [0.0] * min(workers, len(seconds))
    for job in seconds:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def pace_for(paces: Mapping[int, float], workers: int) -> float:
    """The share of its time for which a worker does not wait for the database, at the nearest number of workers."""
    if workers == 1:
        return 1.0
    return paces[min(paces, key=lambda count: abs(count - workers))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="configs/llm.yaml")
    parser.add_argument("--workers", default="1,8,64,512", metavar="N,...")
    parser.add_argument("--repeats", default="1,10", metavar="N,...")
    parser.add_argument("--load", type=Path, default=Path("benchmarks/results/cpu/fleet_queue.json"))
    parser.add_argument("--out", type=output_file)
    arguments = parser.parse_args()
    rows = json.loads(arguments.load.read_text())["rows"]
    paces = {row["workers"]: row["pace"] for row in rows}
    sizes = job_sizes(arguments.shapes)
    told = [
        f"$ python -m benchmarks.scale.fleet_makespan --shapes {arguments.shapes}", "",
        f"{len(sizes)} jobs of {sum(sizes)} problems; simulated from the recorded runs of {DEVICE} in fleet_queue.py,",
        f"and from the load in {arguments.load.name}; {datetime.now(UTC).date().isoformat()}", "",
        "| plans | jobs | workers | at work | pace | minutes | times as fast | of the ideal |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for repeats in map(int, arguments.repeats.split(",")):
        seconds = job_seconds(sizes * repeats)
        for workers in map(int, arguments.workers.split(",")):
            pace = pace_for(paces, workers)
            took = makespan(seconds, workers) / pace
            faster = sum(seconds) / took
            cells = (
                repeats, len(seconds), workers, min(workers, len(seconds)), f"{pace:.2f}", f"{took / 60:.1f}",
                f"{faster:.1f}", f"{faster / workers:.0%}",
            )  # fmt: skip
            told.append(f"| {' | '.join(map(str, cells))} |")
    print(*told, sep="\n")
    if arguments.out:
        arguments.out.write_text("\n".join(told) + "\n")


if __name__ == "__main__":
    main()

"""The status of a fleet as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import text
from .table import Column, Group, print_table

if TYPE_CHECKING:
    from tuning_db.queue.status import FleetStatus, JobCounts, WorkerStatus

_SILENT_S = 120.0
"""A worker that was not seen for so long is told as silent: it is dead, or cannot reach the database."""

_JOBS = (
    Column("jobs for"),
    Column("queued", right=True),
    Column("leased", right=True),
    Column("done", right=True),
    Column("failed", right=True),
    Column("decided", right=True),
    Column("left", right=True),
)
_WORKERS = (
    Column("worker"),
    Column("device"),
    Column("state"),
    Column("job"),
    Column("done", right=True),
    Column("seen", right=True),
    Column("message"),
)


def show(status: FleetStatus) -> None:
    """Print jobs by model of device, workers, and the latest failures."""
    if not status.jobs:
        text.say("no jobs: `registry fleet plan` queues some")
        return
    print_table(_JOBS, [Group("", [_jobs(counts) for counts in status.jobs])])
    if status.workers:
        text.say()
        print_table(_WORKERS, [Group("", [_worker(worker) for worker in status.workers])])
    if status.failures:
        text.say()
        text.say("latest failures:")
        for one in status.failures:
            text.say(f"  {text.duration(one.ago_s)} ago, {one.op} on {one.host}: {one.outcome}: {one.message}", hang=4)


def _jobs(counts: JobCounts) -> list[str]:
    numbers = counts.queued, counts.leased, counts.done, counts.failed, counts.decided
    left = "-" if counts.seconds_left is None else text.duration(counts.seconds_left)
    return [counts.device, *map(str, numbers), left]


def _worker(worker: WorkerStatus) -> list[str]:
    state = worker.state
    if not worker.ended and worker.seen_s > _SILENT_S:
        state = f"silent ({state})"
    job = "-" if worker.held_s is None else f"{worker.op} for {text.duration(worker.held_s)}"
    return [
        f"{worker.host}:{worker.process}",
        f"{worker.device} {worker.identity}",
        state,
        job,
        str(worker.done),
        f"{text.duration(worker.seen_s)} ago",
        worker.message,
    ]

"""A queue, once on SQLite and once on PostgreSQL, and its entries as planners and workers make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tuning_db import JobQueue
from tuning_db.queue.entries import FleetPlan, FleetWorker, Lease, NewJob, QueuedProblem
from tuning_db.records import new_uid

from ..conftest import place_of

GPU = "NVIDIA H200"


def problems(*rows: int) -> list[QueuedProblem]:
    return [QueuedProblem("softmax", {"rows": count, "cols": 8192, "dtype": "bfloat16"}) for count in rows]


def worker(host: str = "node1", device: str = GPU) -> FleetWorker:
    return FleetWorker(new_uid(), host, 42, device, f"GPU-of-{host}", {"torch": "2.11"})


class Fleet:
    """Adds jobs, and leases as a worker does."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue

    def plan(self, *jobs: Sequence[QueuedProblem], device: str = GPU, **values: int) -> None:
        made = [NewJob(device, one, **values) for one in jobs]
        self.queue.add(FleetPlan(new_uid(), "planner", {"torch": "2.11"}, {"trials": 8}), made)

    def joins(self, host: str = "node1", device: str = GPU) -> FleetWorker:
        found = worker(host, device)
        self.queue.register(found)
        return found

    def lease(self, by: FleetWorker, seconds: float = 60) -> Lease | None:
        return self.queue.lease(by.uid, [by.device], list(self.queue.open_plans([by.device])), seconds)

    def takes(self, by: FleetWorker, seconds: float = 60) -> Lease:
        found = self.lease(by, seconds)
        assert found is not None
        return found


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """As the store's tests have it; what a server might do otherwise asks for both kinds, see ``BOTH``."""
    return place_of(request.param, request, tmp_path)


BOTH = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def queue(url: str) -> Iterator[JobQueue]:
    with JobQueue.open(url) as opened:
        yield opened


@pytest.fixture
def fleet(queue: JobQueue) -> Fleet:
    return Fleet(queue)

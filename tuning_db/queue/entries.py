"""Entries of the queue: plain data that it takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..identities import StoredValue
from ..keys import digest

QUEUED, LEASED, DONE, FAILED = "queued", "leased", "done", "failed"
"""States of a job. A lease that expires leaves its job LEASED until another worker leases it or it is put down."""
SUPERSEDED = "superseded by plan"
"""The beginning of the message of a FAILED job whose problems a plan under other versions has taken over."""


@dataclass(frozen=True)
class QueuedProblem:
    """A problem of a job: its op, dimensions, and how often a program calls it (0 where nothing tells)."""

    op: str
    dims: Mapping[str, StoredValue]
    count: int = 0

    @property
    def key(self) -> str:
        """SHA-256 of op and dimensions."""
        return digest({"op": self.op, "dims": dict(self.dims)})


@dataclass(frozen=True)
class FleetPlan:
    """What a planner asks of a fleet.

    requires  name -> version that a worker must have, e.g. of torch, Triton and plugins; {} asks for nothing
    options   of the tuning runs, the same for all jobs
    """

    uid: str
    planner: str
    requires: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NewJob:
    """A job to add: ``problems`` of one op for devices of the model ``device``, the greatest ``priority`` first."""

    device: str
    problems: Sequence[QueuedProblem]
    priority: float = 0.0
    most_attempts: int = 3


@dataclass(frozen=True)
class Added:
    """The outcome of a planner's call: jobs and problems added, and problems that open jobs hold already."""

    jobs: int
    problems: int
    already: int


@dataclass(frozen=True)
class Fence:
    """A lease's right to publish: the uid of its job, and the token that no earlier and no later lease has."""

    job: str
    token: int


@dataclass(frozen=True)
class Lease:
    """A job that a worker holds for some time; ``attempt`` counts from 1."""

    fence: Fence
    worker: str
    device: str
    op: str
    problems: tuple[QueuedProblem, ...]
    options: Mapping[str, Any]
    attempt: int
    most_attempts: int


@dataclass(frozen=True)
class FleetWorker:
    """A worker as it registers. ``device`` is the model of its device, ``identity`` the device's UUID."""

    uid: str
    host: str
    process: int
    device: str
    identity: str
    software: Mapping[str, str] = field(default_factory=dict)

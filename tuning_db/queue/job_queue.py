"""The queue: planners add jobs, workers lease them. Every method is one short transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, insert, or_, select, update

from ..database.engine import Opened, open_database
from ..database.location import locate
from ..errors import OutdatedSchemaError
from . import calibrations, fencing, leasing, planning, status
from .clock import DatabaseSeconds
from .entries import LEASED, QUEUED, Added, Fence, FleetPlan, FleetWorker, Lease, NewJob, QueuedProblem
from .tables import QUEUE, FleetCalibrationRow, FleetJobRow, FleetPlanRow, FleetWorkerRow

_NOW = DatabaseSeconds()

SILENCE_S = 30.0
"""Seconds without a byte of a server's answer after which it is lost: every question of the queue is a short one."""


class JobQueue:
    """The work queue in a tuning database. Threads may share it.

    Connections to a server are closed after each transaction, so that hundreds of waiting workers hold none. Every
    method raises a TuningDBError when the database cannot be read or written.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    @classmethod
    def open(
        cls,
        url: str | Path | None = None,
        *,
        create: bool = True,
        migrate: bool = True,
        silence_s: float = SILENCE_S,
    ) -> JobQueue:
        """Opens the queue in the database at ``url``, see ``Store.open``.

        A server that is silent for ``silence_s`` seconds is lost (LostDatabaseError), also where a network has stalled.
        Raises OutdatedSchemaError for an older database that has no queue, if it is not to be migrated.
        """
        opened = open_database(locate(url), create=create, upgrade=migrate, pooled=False, silence_s=silence_s)
        if opened.version < QUEUE:
            opened.close()
            raise OutdatedSchemaError(
                f"{opened.location.shown} has schema version {opened.version}, which has no work queue",
                hint="`registry fleet plan` and `registry db upgrade` bring it up to date, with all it holds",
            )
        return cls(opened)

    @property
    def url(self) -> str:
        """The database's URL, with passwords hidden."""
        return self._opened.location.shown

    def close(self) -> None:
        """Closes every connection; the queue cannot be used afterwards."""
        self._opened.close()

    def __enter__(self) -> JobQueue:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    # planners

    def add(self, plan: FleetPlan, jobs: Sequence[NewJob]) -> Added:
        """Adds a plan with its jobs. Problems that an open job for the same model of device has are left out.

        That job must be of a plan with the same required versions, regime and retuning. Of jobs under other versions
        that nobody works on, the plan's problems are taken out; one without any left has failed as superseded. Planners
        take turns, so that two that plan at once add each problem once. A plan of a known uid is left as it is, so a
        retry is harmless.
        """
        with self._opened.writing() as session:
            return planning.add(session, plan, jobs)

    # workers

    def register(self, worker: FleetWorker) -> None:
        """Adds a worker; one that is there already is left as it is, so a retry is harmless."""
        with self._opened.writing() as session:
            if session.get(FleetWorkerRow, worker.uid) is None:
                values = {"id": worker.uid, **{name: value for name, value in vars(worker).items() if name != "uid"}}
                values |= {"started": _NOW, "seen": _NOW, "state": "waiting", "message": ""}
                session.execute(insert(FleetWorkerRow).values(values))

    def beat(self, worker: str, state: str, message: str = "", *, ended: bool = False) -> None:
        """Says that a worker is there, and its state: waiting, working, refused, set aside, or left."""
        values = {"seen": _NOW, "state": state, "message": message} | ({"ended": _NOW} if ended else {})
        with self._opened.writing() as session:
            session.execute(update(FleetWorkerRow).where(FleetWorkerRow.id == worker).values(values))

    def open_plans(self, devices: Collection[str]) -> dict[int, Mapping[str, str]]:
        """What each plan requires, by its number, of those that have open jobs for these models of devices."""
        jobs = select(FleetJobRow.plan_id).where(
            FleetJobRow.device.in_(sorted(devices)), FleetJobRow.state.in_([QUEUED, LEASED])
        )
        with self._opened.reading() as session:
            query = select(FleetPlanRow.id, FleetPlanRow.requires).where(FleetPlanRow.id.in_(jobs))
            return {number: requires for number, requires in session.execute(query)}  # noqa: C416

    def waiting(self) -> list[tuple[NewJob, Mapping[str, Any]]]:
        """The jobs that wait for a worker, with their plans' options, in the order in which they will be leased.

        A job whose lease has expired is one of them, also after its last attempt: a worker that asks puts it down.
        """
        waits = or_(FleetJobRow.state == QUEUED, leasing.expired())
        query = select(FleetJobRow, FleetPlanRow.options).join(FleetPlanRow).where(waits)
        with self._opened.reading() as session:
            return [
                (
                    NewJob(row.device, [QueuedProblem(**one) for one in row.problems], row.priority, row.most_attempts),
                    options,
                )
                for row, options in session.execute(query.order_by(FleetJobRow.priority.desc(), FleetJobRow.id))
            ]

    def lease(self, worker: str, devices: Collection[str], plans: Collection[int], seconds: float) -> Lease | None:
        """A lease of the next job of these plans for these models of devices; None if there is none to be had now."""
        with self._opened.writing() as session:
            taken = leasing.take(session, worker, devices, plans, seconds)
            if taken is None:
                leasing.put_down(session)
            return taken

    def renew(self, fence: Fence, seconds: float) -> bool:
        """Extends a lease to ``seconds`` from now; False if it is lost, which stays so."""
        with self._opened.writing() as session:
            return leasing.renew(session, fence, seconds)

    def complete(self, fence: Fence, message: str = "") -> bool:
        """Marks the job as done; False, with nothing changed, if the lease is lost."""
        with self._opened.writing() as session:
            return leasing.complete(session, fence, message)

    def fail(self, fence: Fence, message: str) -> bool:
        """Gives the job back after a failed attempt, the last of which fails the job; False if the lease is lost."""
        with self._opened.writing() as session:
            return leasing.fail(session, fence, message)

    def hand_back(self, fence: Fence, message: str) -> bool:
        """Gives the job back, which does not count as an attempt; False if the lease is lost."""
        with self._opened.writing() as session:
            return leasing.hand_back(session, fence, message)

    def set_aside(self, fence: Fence, message: str) -> int:
        """Gives the job back and sets the decisions of this lease aside; returns how many these were.

        What they replaced are the winners again. The decisions of a lost lease are set aside, too: their problems are
        decided by the worker that leases the job next, or by a new job if another worker has taken it over.
        """
        with self._opened.writing() as session:
            count = fencing.withdraw(session, fence)
            leasing.set_aside(session, fence, message)
            return count

    def decided(self, job: str) -> list[tuple[str, Mapping[str, Any]]]:
        """(op, dims) of the problems that the leases of a job have decided so far."""
        with self._opened.reading() as session:
            return fencing.decided(session, job)

    # calibration

    def calibrated(self, worker: FleetWorker, times: Mapping[str, float]) -> None:
        """Stores the times in µs of a device's calibration, by entry."""
        rows = [
            {"worker_id": worker.uid, "device": worker.device, "identity": worker.identity, "entry": name, "us": us}
            for name, us in times.items()
        ]
        with self._opened.writing() as session:
            for row in rows:
                session.execute(insert(FleetCalibrationRow).values(row | {"at": _NOW}))

    def calibrations(
        self, device: str, software: Mapping[str, str], entries: Collection[str]
    ) -> calibrations.DeviceTimes:
        """The newest times in µs of these entries on each device of a model, by the device's identity and the entry.

        Devices that were not timed within the last month, or last under other software, are left out.
        """
        with self._opened.reading() as session:
            return calibrations.newest(session, device, software, entries)

    # everybody

    def status(self) -> status.FleetStatus:
        """Jobs, workers, failures and pace."""
        with self._opened.reading() as session:
            return status.read(session)

    def open_jobs(self, devices: Collection[str] = ()) -> int:
        """The number of jobs that are not over, for these models of devices (none: for all); read from an index."""
        query = select(func.count()).where(FleetJobRow.state.in_([QUEUED, LEASED]))
        if devices:
            query = query.where(FleetJobRow.device.in_(sorted(devices)))
        with self._opened.reading() as session:
            return int(session.execute(query).scalar_one())

    def seconds(self) -> float:
        """This instant by the clock of the database, in seconds since 1970."""
        with self._opened.reading() as session:
            return float(session.execute(select(_NOW)).scalar_one())

    def __repr__(self) -> str:
        return f"JobQueue({self.url!r})"

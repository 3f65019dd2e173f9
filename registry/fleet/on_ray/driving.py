"""Drives a fleet on Ray to the end of its jobs: holds the cluster's process, and starts it again when it is lost."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from urllib.parse import urlsplit

from tuning_db import JobQueue
from tuning_db.database.location import locate

from ...errors import RegistryError
from ...tuner.patience import Patience
from ..planner import CPU
from .orders import NO_PLACE, ClusterEvent, ClusterOrders

_LOOK_S = 1.0
_LATE, _MOST_LATE_S = 0.02, 10.0
"""The share of a run's time, and the seconds, by which its end may be noticed late."""
_AGAIN_S = 5.0
_AWAY_S = 900.0
"""How long the cluster may be away before the run ends for it."""
_SHORT_S, _MOST_SHORT = 60.0, 3
"""So often in a row the cluster may be lost within so many seconds after it was joined."""
_JOIN_S, _CONNECT_S = 120.0, 10.0
_END_S = 120.0
_MOST_SHOWN = 300
_EXPECTED = "expected auto (the cluster of this machine), local (one on this machine alone) or ray://HOST:10001"


def require_ray() -> None:
    """Raise RegistryError, which says what to install, if Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise RegistryError(
            "tune --fleet needs Ray, which is not installed",
            hint="pip install 'kernel-registry[fleet]'; without Ray, start `registry fleet work` on each machine",
        )


def check_reach(database: str | None, address: str) -> str:
    """The database's URL for all nodes. Raises RegistryError for a file and a cluster of other machines."""
    place = locate(database)
    if place.server is not None:
        return place.server.render_as_string(hide_password=False)
    if address.startswith("ray://"):
        raise RegistryError(
            f"{place.shown} is a file of this machine, which the nodes of {address} do not reach",
            hint="--db postgresql://user@host/database",
        )
    return str(place.path)


def models_of(address: str, device: str) -> list[str]:
    """The models of the GPUs of a cluster, as planners name them. Raises RegistryError where there is no cluster."""
    found: list[str] = []
    if device == "cpu":
        return [CPU]
    with _Held(ClusterOrders(address, "", device), lambda event: _take_models(event, found)) as cluster:
        cluster.process.wait()
    if not found:
        raise RegistryError(cluster.fault or f"the cluster at {address} has no GPU", hint="--device cpu tunes CPUs")
    return found


def drive(orders: ClusterOrders, queue: JobQueue, tell: Callable[[str], None]) -> None:
    """Work on the queue's jobs for the orders' models until none is open; Ctrl-C gives the present jobs back.

    When the cluster goes away (its head is started again), actors are made anew as soon as it is back: jobs and trials
    are in the database. Raises RegistryError for a cluster that is not there, or stays away.
    """
    patiently = Patience(tell)
    joined_at, short = 0.0, 0
    while True:
        began, fault, joined = time.monotonic(), _unreachable(orders.address), False
        if not fault:
            with _Held(orders, lambda event: tell(_line(event))) as cluster:
                ask_at = began
                while cluster.process.poll() is None and (cluster.joined or time.monotonic() - began < _JOIN_S):
                    if (now := time.monotonic()) >= ask_at:
                        if not patiently(lambda: queue.open_jobs(orders.models)):
                            return
                        # a fleet that has worked for long is asked seldom: at the end a little of its time is lost
                        ask_at = now + min(max(_LOOK_S, (now - began) * _LATE), _MOST_LATE_S)
                    time.sleep(_LOOK_S)
            if cluster.process.returncode == NO_PLACE:
                hint = "each has said why, above"
                raise RegistryError(f"no node of {orders.address} can work on these jobs", hint=hint)
            fault, joined = f"no Ray cluster at {orders.address}: {cluster.fault}", cluster.joined
        now = time.monotonic()
        joined_at = now if joined else joined_at
        short = short + 1 if joined and now - began < _SHORT_S else 0
        if not joined_at or now - joined_at > _AWAY_S or short >= _MOST_SHORT:
            hint = "the same command goes on later: jobs and trials are in the database" if joined_at else _EXPECTED
            raise RegistryError(fault, hint=hint)
        tell(f"the cluster is away ({fault}); trying again for {_AWAY_S:.0f} s")
        time.sleep(_AGAIN_S)


class _Held:
    """The cluster's process, which ends with the context. ``joined``: whether it has joined the cluster."""

    def __init__(self, orders: ClusterOrders, tell: Callable[[ClusterEvent], None]) -> None:
        self._orders = orders
        self._tell = tell
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the context)
        self.joined = False
        self.fault = ""

    def __enter__(self) -> _Held:
        if fault := _unreachable(self._orders.address):
            raise RegistryError(fault, hint=_EXPECTED)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "registry.fleet.on_ray.cluster"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asdict(self._orders)) + "\n")
            self.process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        if not self.joined:
            self.process.kill()  # Ray may wait for a cluster that does not answer for minutes
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # a process that Ray has left behind may hold the pipe open
        self._listener.join(_LOOK_S)
        if not self._listener.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self.fault = said[-1][:_MOST_SHOWN] if said else f"its process ended with {self.process.returncode}"
        self._errors.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = ClusterEvent(**json.loads(line))
            except (ValueError, TypeError):  # Ray, or a library of a node, has printed something
                continue
            self.joined = self.joined or event.event == "connected"
            self._tell(event)


def _unreachable(address: str) -> str:
    """Why nothing listens at a cluster's address, "" if something does or the address has no port."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        if place.hostname and place.port:
            socket.create_connection((place.hostname, place.port), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as fault:
        return f"no Ray cluster at {address}: {fault}"
    return ""


def _take_models(event: ClusterEvent, found: list[str]) -> None:
    if event.event == "models":
        found += json.loads(event.text)


def _line(event: ClusterEvent) -> str:
    return f"{event.where}: {event.text}" if event.event == "said" else f"{event.where} {event.event}: {event.text}"

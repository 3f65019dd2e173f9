"""The process that holds a fleet's actors on a Ray cluster: ``python -m registry.fleet.on_ray.cluster``.

It reads its orders as one line of JSON, prints a line of JSON for each event, and ends when its input ends. Ray ends a
process whose cluster goes away, which is why this is one of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuning_db import JobQueue, TuningDBError
from tuning_db.queue.entries import NewJob

from .actors import AheadCompiler, AheadReport, ArtifactShelf, NodeWorker, WorkerReport, device_there
from .described_device import DescribedDevice
from .orders import NO_PLACE, ClusterEvent, ClusterOrders

_LOOK_S = 1.0
_ASK_S = 3.0
"""Seconds between two questions for the jobs that wait."""
_END_S = 90.0
_MOST_STARTS = 3
"""Starts of a worker in one place that may end badly before the place is left alone."""
_AGAIN_S = 10.0
"""Seconds before a worker that has left, since there was no job for it, is started again for a job that waits.

Twice as long each time: the jobs that wait may be for another model.
"""
_MOST_DOUBLINGS = 5


@dataclass
class _Place:
    """A GPU of a node (or the node's CPU) with the actor that works there."""

    node: str
    host: str
    index: int
    actor: Any = None
    report: Any = None
    device: DescribedDevice | None = None
    describing: Any = None
    indescribable: bool = False
    bad_ends: int = 0
    shut: bool = False
    again_at: float = 0.0
    idle: int = 0
    taken: int = 0


class ActorCluster:
    """Keeps one worker at each place of the cluster as nodes join and leave, and compilers ahead of them."""

    def __init__(self, orders: ClusterOrders, queue: JobQueue) -> None:
        self._orders = orders
        self._queue = queue
        self._places: dict[tuple[str, int], _Place] = {}
        self._shelf: Any = _new_shelf() if orders.compilers else None
        self._compilers: list[Any] = []
        self._compiling: dict[Any, Any] = {}
        self._problems: list[tuple[Any, ...]] = []
        self._ordered: set[tuple[str, str]] = set()
        self._jobs: list[tuple[NewJob, Mapping[str, Any]]] = []
        self._ask_at = 0.0
        self._left: set[str] = set()

    def look(self) -> None:
        """Bring actors in line with nodes and jobs, and pass on artifacts."""
        self._find_places()
        self._ask_for_jobs()
        waiting = bool(self._jobs)
        for place in self._places.values():
            if place.actor is not None:
                self._hear(place)
            elif not place.shut and waiting and time.monotonic() >= place.again_at:
                self._start(place)
        if self._orders.compilers:
            self._describe()
            self._order_variants()
            self._feed_compilers()
            self._share()

    def _ask_for_jobs(self) -> None:
        """Read the jobs that wait, now and then: a long plan is many rows."""
        if (now := time.monotonic()) >= self._ask_at:
            self._jobs = [(job, options) for job, options in self._queue.waiting() if self._orders.concerns(job.device)]
            self._ask_at = now + _ASK_S

    @property
    def useless(self) -> bool:
        """True if there are places for workers, none of which can or may be used."""
        return bool(self._places) and all(place.shut for place in self._places.values())

    def stop(self) -> None:
        """Have every worker give its job back, and tell the last reports of the workers."""
        actors = [place.actor for place in self._places.values() if place.actor is not None]
        asked = [actor.stop.remote() for actor in actors] + [actor.report.remote() for actor in actors]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_END_S) if asked else ([], [])
        for reference in set(ready) & set(asked[len(actors) :]):
            with contextlib.suppress(RayError):
                self._tell(ray.get(reference))

    # places

    def _find_places(self) -> None:
        alive = {node["NodeID"]: node for node in _alive()}
        for key, place in list(self._places.items()):
            if place.node not in alive:
                del self._places[key]
                _say("left", place.host, "the node has left; its job goes to another worker")
        for number, node in alive.items():
            host = node["NodeManagerHostname"]
            for index in range(self._count(node["Resources"])):
                if (number, index) not in self._places:
                    self._places[number, index] = _Place(number, host, index)
                    _say("joined", host, f"{self._orders.device} {index} of node {number[:8]}")

    def _count(self, resources: Mapping[str, float]) -> int:
        return int(resources.get("GPU", 0)) if self._orders.device == "cuda" else int(resources.get("CPU", 0) >= 1)

    def _on(self, place: _Place) -> dict[str, Any]:
        needs = {"num_gpus": 1, "num_cpus": 0} if self._orders.device == "cuda" else {"num_cpus": 1}
        return {**needs, "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node, soft=False)}

    def _start(self, place: _Place) -> None:
        orders = self._orders
        place.actor = (
            ray.remote(NodeWorker)
            .options(**self._on(place))
            .remote(orders.database, orders.device, orders.lease_s, dict(orders.plugins))
        )
        place.report, place.taken = None, 0

    def _hear(self, place: _Place) -> None:
        """Take in the report that was asked for, and ask for the next one."""
        if place.report is None:
            place.report = place.actor.report.remote()
            return
        ready, _ = ray.wait([place.report], timeout=0)
        if not ready:
            return
        try:
            report: WorkerReport = ray.get(place.report)
        except RayError as fault:
            self._bad_end(place, f"its actor died ({type(fault).__name__})")
            return
        place.report = None
        self._tell(report)
        if report.code is None:
            return
        ray.kill(place.actor)
        place.actor, place.idle = None, min(place.idle + 1, _MOST_DOUBLINGS)
        place.again_at = time.monotonic() + _AGAIN_S * 2 ** (place.idle - 1)
        if report.code in {1, 2}:  # it has said why: this node cannot work, or may not
            place.shut = True
        elif report.code != 0:
            self._bad_end(place, f"its worker ended with {report.code}")

    def _tell(self, report: WorkerReport) -> None:
        for line in report.lines:
            _say("said", f"{report.host}:{report.process}", line)

    def _bad_end(self, place: _Place, why: str) -> None:
        place.actor = place.report = None
        place.bad_ends += 1
        place.shut = place.bad_ends >= _MOST_STARTS
        place.again_at = 0.0
        _say("lost", place.host, why + ("; it is not started again" if place.shut else ""))

    # compiling ahead

    def _describe(self) -> None:
        for place in self._places.values():
            if place.describing is None and place.device is None and not place.indescribable:
                place.describing = _described(place.node, self._orders.device, place.index)
            elif place.describing is not None and ray.wait([place.describing], timeout=0)[0]:
                found, place.describing = place.describing, None
                try:
                    place.device = ray.get(found)
                except RayError:
                    place.indescribable = True

    def _order_variants(self) -> None:
        models = {one.device.device.name: one.device for one in self._places.values() if one.device}
        for job, options in self._jobs:
            device = next(iter(models.values()), None) if job.device == "cpu" else models.get(job.device)
            for problem in job.problems if device else ():
                key = (job.device, problem.key)
                if key not in self._ordered:
                    self._ordered.add(key)
                    self._problems.append((device, problem.op, dict(problem.dims), options["implementations"]))

    def _feed_compilers(self) -> None:
        while self._problems and len(self._compilers) < self._orders.compilers:
            made = ray.remote(AheadCompiler).options(num_cpus=1).remote(self._shelf, dict(self._orders.plugins))
            self._compilers.append(made)
        left = list(self._compiling)
        done, _ = ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
        for reference in done:
            compiler = self._compiling.pop(reference)
            try:
                self._tell_ahead(ray.get(reference))
            except RayError as fault:
                _say("lost", "compiler", str(fault).splitlines()[0])
                if isinstance(fault, RayActorError) or not isinstance(fault, RayTaskError):
                    self._compilers.remove(compiler)
        busy = list(self._compiling.values())
        for compiler in self._compilers:
            if self._problems and compiler not in busy:
                self._compiling[compiler.compile.remote(*self._problems.pop(0))] = compiler

    def _share(self) -> None:
        for place in self._places.values():
            if place.actor is not None and place.device:
                try:
                    new, count = ray.get(self._shelf.since.remote(place.device.groups, place.taken))
                except RayError as fault:
                    self._replace_shelf(f"the shelf of artifacts ({type(fault).__name__}); it is made anew")
                    return
                place.taken = count
                if new:
                    place.actor.take.remote(new)

    def _tell_ahead(self, report: AheadReport) -> None:
        if report.count:
            _say("compiled", "ahead", f"{report.count} variants")
        for line in report.left:
            if line not in self._left:
                self._left.add(line)
                _say("said", "ahead", line)

    def _replace_shelf(self, why: str) -> None:
        """Begin compiling ahead anew, with compilers of the new shelf: what was claimed went with the old one."""
        _say("lost", "compiler", why)
        self._shelf = _new_shelf()
        self._compilers.clear()
        self._compiling.clear()
        self._problems.clear()
        self._ordered.clear()
        for place in self._places.values():
            place.taken = 0


def _new_shelf() -> Any:
    return ray.remote(ArtifactShelf).options(num_cpus=0).remote()


def connect(address: str) -> None:
    """Join the cluster at ``address``, or start one on this machine for "local"."""
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        ray.init(include_dashboard=False, **quiet)
    else:
        ray.init(address=address, **quiet)


def _alive() -> list[dict[str, Any]]:
    nodes: Any = ray.nodes  # a function without types
    return [node for node in nodes() if node["Alive"]]


def models_there(device: str) -> list[str]:
    """The models of the cluster's GPUs, each once; "cpu" for CPUs."""
    if device == "cpu":
        return ["cpu"]
    gpus = [(node["NodeID"], index) for node in _alive() for index in range(int(node["Resources"].get("GPU", 0)))]
    found: list[DescribedDevice] = ray.get([_described(node, "cuda", at) for node, at in gpus])
    return list(dict.fromkeys(one.device.name for one in found))


def _described(node: str, device: str, index: int) -> Any:
    """A reference to the description of a device of a node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    name = f"cuda:{index}" if device == "cuda" else device
    return ray.remote(device_there).options(num_cpus=0, scheduling_strategy=there).remote(name)


def main() -> None:
    """Hold the actors until standard input ends."""
    orders = ClusterOrders(**json.loads(_line()))
    over = threading.Event()
    threading.Thread(target=_watch_input, args=(over,), daemon=True).start()
    connect(orders.address)
    if not orders.database:
        _say("models", orders.address, json.dumps(models_there(orders.device)))
        return
    _say("connected", orders.address, f"{len(_alive())} nodes")
    with JobQueue.open(orders.database) as queue:
        cluster = ActorCluster(orders, queue)
        while not over.wait(_LOOK_S):
            try:
                cluster.look()
            except TuningDBError as fault:  # the workers wait for it, too
                _say("database", "", fault.message)
            if cluster.useless:
                sys.exit(NO_PLACE)
        cluster.stop()
    ray.shutdown()


def _line() -> bytes:
    """One line of standard input, unbuffered: a thread that holds the buffer's lock aborts the interpreter's end."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(0, 1)):
        line += part
    return line


def _watch_input(over: threading.Event) -> None:
    while os.read(0, 1 << 10):
        pass
    over.set()


def _say(event: str, where: str, text: str) -> None:
    sys.stdout.write(json.dumps(asdict(ClusterEvent(event, where, text))) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

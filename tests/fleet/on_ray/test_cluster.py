"""The holder of a cluster's actors, on a real Ray of this machine: what is lost ends nothing but itself."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from registry.fleet.on_ray.orders import ClusterOrders
from tuning_db import JobQueue

from ..conftest import PLUGIN, ROOT, queue_squares

if TYPE_CHECKING:  # see late_imports
    import ray

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
pytestmark = [pytest.mark.usefixtures("late_imports"), pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _local_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "plugins")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    yield
    ray.shutdown()


def orders(queue: JobQueue) -> ClusterOrders:
    return ClusterOrders("local", queue.url, "cpu", 10.0, {PLUGIN.name: PLUGIN.read_text()}, compilers=1)


def until(reached: Callable[[], bool], step: Callable[[], None], limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < end
        step()
        time.sleep(0.1)


def test_a_node_that_is_gone_ends_its_place_alone(file_queue: JobQueue) -> None:
    """Ray's errors of nodes and of actors that nothing can hold share only their base class."""
    from registry.fleet.on_ray.cluster import ActorCluster, _Place

    cluster = ActorCluster(orders(file_queue), file_queue)
    place = cluster._places["a1" * 28, 0] = _Place("a1" * 28, "gone", 0)
    cluster._start(place)
    until(lambda: place.bad_ends == 1, lambda: cluster._hear(place))
    until(lambda: place.indescribable, cluster._describe)
    cluster._start(place)
    cluster.stop()


def test_a_shelf_that_is_lost_is_made_anew_with_its_compilers(file_queue: JobQueue) -> None:
    from registry.fleet.on_ray.cluster import ActorCluster

    queue_squares(file_queue, [256, 512, 1024], trials=24)
    cluster = ActorCluster(orders(file_queue), file_queue)
    until(
        lambda: bool(cluster._compilers) and all(one.actor and one.device for one in cluster._places.values()),
        cluster.look,
    )
    first, compilers = cluster._shelf, list(cluster._compilers)
    (place,) = cluster._places.values()
    place.taken = 5
    ray.kill(first)
    until(lambda: cluster._shelf is not first, cluster.look)
    assert place.taken == 0
    until(lambda: bool(cluster._compilers), cluster.look)
    assert cluster._compilers[0] not in compilers
    assert ray.get(cluster._shelf.since.remote(["none"], 0), timeout=60) == ([], 0)
    cluster.stop()


def test_what_is_left_to_the_workers_compilers_is_said_once(
    file_queue: JobQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    from registry.fleet.on_ray.actors import AheadReport
    from registry.fleet.on_ray.cluster import ActorCluster

    cluster = ActorCluster(replace(orders(file_queue), compilers=0), file_queue)
    for count in (2, 0):
        cluster._tell_ahead(AheadReport(count, ("torch.compile is left to a GPU: other torch",)))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["event"], one["text"]) for one in said] == [
        ("compiled", "2 variants"),
        ("said", "torch.compile is left to a GPU: other torch"),
    ]

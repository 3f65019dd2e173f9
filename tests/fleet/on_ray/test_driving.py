"""A fleet on a real Ray cluster: nodes that leave and join, a head that is started again, nodes that may not work."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from registry.errors import RegistryError
from registry.fleet.on_ray.driving import check_reach, drive
from registry.fleet.on_ray.orders import ClusterOrders
from tuning_db import JobQueue

from ..conftest import CONFIGS, PLUGIN, ROOT, queue_squares
from ..test_faults import decided_once, stored_trials

if TYPE_CHECKING:  # see late_imports
    from ray import cluster_utils

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
pytestmark = [pytest.mark.usefixtures("late_imports"), pytest.mark.thorough, pytest.mark.timeout(400)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def head(port: int) -> Iterator[Any]:
    """A cluster whose head has no CPU for workers."""
    options = {"num_cpus": 0, "gcs_server_port": port, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=options)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=80 << 20)


@pytest.fixture(autouse=True)
def _nodes_find_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "plugins")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


class Drive:
    """``drive`` in a thread; ``told`` are the lines that it tells."""

    def __init__(self, orders: ClusterOrders) -> None:
        self.told: list[str] = []
        self.fault: BaseException | None = None
        self._orders = orders
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with JobQueue.open(self._orders.database) as queue:
                drive(self._orders, queue, self.told.append)
        except BaseException as fault:
            self.fault = fault

    def until(self, reached: Callable[[], bool], limit_s: float = 120) -> None:
        end = time.monotonic() + limit_s
        while not reached():
            assert self._thread.is_alive(), (self.told, self.fault)
            assert time.monotonic() < end, self.told
            time.sleep(0.1)

    def ends(self, limit_s: float = 240) -> None:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), self.told


def orders(port: int, url: str, **values: Any) -> ClusterOrders:
    plugins = {PLUGIN.name: PLUGIN.read_text()}
    return replace(ClusterOrders(f"127.0.0.1:{port}", url, "cpu", 10.0, plugins), **values)


def test_a_node_that_is_lost_is_replaced_by_one_that_joins(server_url: str) -> None:
    port = free_port()
    with JobQueue.open(server_url) as queue:
        # enough to be at work still when Ray finds, after 15 s, that the node has gone
        queue_squares(queue, [256 << number for number in range(8)], trials=CONFIGS)
    with head(port) as cluster:
        first = node(cluster)
        running = Drive(orders(port, server_url))
        running.until(lambda: len(stored_trials(server_url)) >= 4)
        before = stored_trials(server_url)
        cluster.remove_node(first, allow_graceful=False)
        node(cluster)
        running.ends()
        assert running.fault is None, running.told
    assert sum("joined" in line for line in running.told) == 2
    assert any("the node has left" in line for line in running.told), running.told
    decided_once(server_url, jobs=8, before=before)
    assert before <= stored_trials(server_url)


def test_a_head_that_is_started_again_finds_the_jobs_in_the_database(server_url: str) -> None:
    port = free_port()
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256, 512], trials=CONFIGS)
    with contextlib.ExitStack() as first:
        node(first.enter_context(head(port)))
        running = Drive(orders(port, server_url))
        running.until(lambda: len(stored_trials(server_url)) >= 4)
        before = stored_trials(server_url)
    running.until(lambda: any("is away" in line for line in running.told))
    with head(port) as second:
        node(second)
        running.ends()
        assert running.fault is None, running.told
    decided_once(server_url, jobs=2, before=before)
    assert before <= stored_trials(server_url)


def test_nodes_with_other_versions_are_named_and_do_nothing(server_url: str) -> None:
    port = free_port()
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256])
        with head(port) as cluster:
            node(cluster)
            changed = {PLUGIN.name: PLUGIN.read_text().replace("range(1, 25)", "range(1, 20)")}
            running = Drive(orders(port, server_url, plugins=changed))
            running.ends()
        assert isinstance(running.fault, RegistryError)
        assert "can work on these jobs" in running.fault.message
        assert any("plugin repeated.py is file, source" in line for line in running.told), running.told
        assert (queue.status().jobs[0].queued, stored_trials(server_url)) == (1, set())


def test_what_is_compiled_ahead_reaches_the_workers_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors as the cluster's process makes them, with a cache each, as on two nodes."""
    import ray

    from registry.device import Device
    from registry.fleet.on_ray.actors import AheadCompiler, AheadReport, ArtifactShelf, NodeWorker, device_there

    caches = [tmp_path / "one", tmp_path / "other"]
    JobQueue.open(tmp_path / "tuning.db").close()
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    try:
        own = [{"env_vars": {"KERNEL_REGISTRY_CACHE": str(cache)}} for cache in caches]
        shelf = ray.remote(ArtifactShelf).remote()
        compiler = ray.remote(AheadCompiler).options(runtime_env=own[0]).remote(shelf, {})
        worker = ray.remote(NodeWorker).options(runtime_env=own[1]).remote(str(tmp_path / "tuning.db"), "cpu", 60.0, {})
        described = ray.get(ray.remote(device_there).remote("cpu"))
        assert described.device == Device.of("cpu")
        asked = (described, "square", {"n": 4096, "dtype": "float32"}, ["cpp.blocks"])
        report = ray.get(compiler.compile.remote(*asked))
        assert report.count > 0
        assert not report.left
        assert ray.get(compiler.compile.remote(*asked)) == AheadReport(0)
        files, number = ray.get(shelf.since.remote(described.groups, 0))
        assert ray.get(worker.take.remote(files)) == len(files) == number == report.count
        assert ray.get(worker.take.remote(files)) == 0
        contents = [{path: (cache / path).read_bytes() for path, _, _ in files} for cache in caches]
        assert contents[0] == contents[1]
        assert ray.get(worker.stop.remote()) == 0
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("compiler", "left"), [("equal", ()), ("another", ("torch.compile is left to {name}: other torch",))]
)
def test_artifacts_of_torch_compile_reach_workers_with_equal_conditions_alone(
    tmp_path: Path, compiler: str, left: tuple[str, ...]
) -> None:
    import ray

    from registry.fleet.on_ray.actors import AheadCompiler, ArtifactShelf
    from registry.fleet.on_ray.described_device import DescribedDevice

    here = DescribedDevice.here("cpu")
    there = here if compiler == "equal" else replace(here, conditions={**here.conditions, "torch": "2.0"})
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    try:
        own = {"env_vars": {"KERNEL_REGISTRY_CACHE": str(tmp_path / "cache")}}
        shelf = ray.remote(ArtifactShelf).remote()
        actor = ray.remote(AheadCompiler).options(runtime_env=own, num_cpus=1).remote(shelf, {})
        report = ray.get(actor.compile.remote(there, "square", {"n": 4096, "dtype": "float32"}, ["torch.compile"]))
        assert report.left == tuple(line.format(name=there.device.name) for line in left)
        files, _ = ray.get(shelf.since.remote(there.groups, 0))
        assert report.count == (0 if left else 1)
        assert [path for path, _, _ in files if path.endswith(".bin")] == [path for path, _, _ in files][
            -report.count :
        ]
    finally:
        ray.shutdown()


def test_a_file_of_this_machine_is_refused_for_a_cluster_of_others(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="do not reach") as caught:
        check_reach(str(tmp_path / "tuning.db"), "ray://head:10001")
    assert "postgresql://" in caught.value.hint
    assert check_reach(str(tmp_path / "tuning.db"), "local") == str(tmp_path / "tuning.db")


def test_a_cluster_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with JobQueue.open(tmp_path / "tuning.db") as queue:
        queue_squares(queue, [256])
        with pytest.raises(RegistryError, match="no Ray cluster at"):
            drive(orders(free_port(), str(tmp_path / "tuning.db")), queue, lambda _: None)

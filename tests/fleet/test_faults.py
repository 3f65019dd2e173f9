"""Faults of a fleet on a real server: workers killed, told to stop, cut off, with wrong clocks, full disks, other code.

No job is lost, none is decided twice, no stored trial is lost, and nothing of an incompatible node is a winner.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from registry.tuner.patience import Patience
from tuning_db import JobQueue, Store
from tuning_db.queue.entries import FleetPlan, NewJob
from tuning_db.records import new_uid

from ..tuning_db.conftest import serving
from ..tuning_db.queue.conftest import problems
from ..tuning_db.queue.conftest import worker as a_worker
from ..tuning_db.stalling import StallingProxy
from .conftest import CONFIGS, PLUGIN, Workers, address, counted, queue_squares, wait_for

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


def decided_once(url: str, jobs: int, before: Collection[str] = ()) -> None:
    """Every job is done, each of its problems was decided once, and each candidate has one lasting trial.

    ``before``: uids of trials that were stored before the fault, which are all there.
    """
    with JobQueue.open(url) as queue, Store.open(url) as store:
        status, stored = queue.status(), store.trials()
        decisions, done = store.statistics().decisions, sum(one.done for one in status.jobs)
        decided = sum(one.decided for one in status.jobs)
        lost = set(before) - {one.uid for one in stored}
        tried = Counter((one.problem.key, one.candidate.key) for one in stored if one.status == "ok")
        repeated = sum(count - 1 for count in tried.values())
        counted(
            jobs=jobs, jobs_lost=jobs - done, decided=decided, decided_twice=decisions - decided,
            trials_before=len(before), trials_lost=len(lost), trials_repeated=repeated,
        )  # fmt: skip
        assert (status.open, status.failed, done) == (0, 0, jobs), status
        assert decided == decisions == len(store.winners())
        assert set(tried.values()) <= {1}
        assert not lost


def stored_trials(url: str) -> set[str]:
    with Store.open(url) as store:
        return {one.uid for one in store.trials()}


def test_a_killed_workers_job_is_finished_by_another(workers: Workers, server_url: str) -> None:
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256, 512], trials=CONFIGS)
    first = workers.start(server_url, "--lease", "8")
    wait_for(lambda: len(stored_trials(server_url)) >= 4, first)
    first.kill()
    before = stored_trials(server_url)
    second = workers.start(server_url, "--lease", "8")
    assert second.ends() == 0, second.told
    decided_once(server_url, jobs=2, before=before)
    assert before <= stored_trials(server_url)
    with JobQueue.open(server_url) as queue:
        assert [one.outcome for one in queue.status().failures] == ["expired"]


def test_a_worker_that_is_told_to_stop_gives_its_job_back(workers: Workers, server_url: str) -> None:
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256], trials=CONFIGS, attempts=1)
        first = workers.start(server_url)
        wait_for(lambda: len(stored_trials(server_url)) >= 4, first)
        assert first.terminate() == 0, first.told
        status = queue.status()
        assert (status.jobs[0].queued, status.failures) == (1, [])
        assert workers.start(server_url).ends() == 0
    decided_once(server_url, jobs=1)


def test_a_server_that_is_away_for_a_while_costs_nothing(workers: Workers, server_folder: Path) -> None:
    url = address(server_folder)
    with ExitStack() as running, ExitStack() as again:
        running.enter_context(serving(server_folder))
        with JobQueue.open(url) as queue:
            queue_squares(queue, [256, 512], trials=CONFIGS)
        one = workers.start(url, "--lease", "120")
        wait_for(lambda: len(stored_trials(url)) >= 4, one)
        before = stored_trials(url)
        running.close()
        time.sleep(60)
        again.enter_context(serving(server_folder))
        assert one.ends() == 0, one.told
        assert "trying again" in one.told
        decided_once(url, jobs=2, before=before)
        assert before <= stored_trials(url)
        with JobQueue.open(url) as queue:
            assert queue.status().failures == []


def test_clocks_an_hour_off_expire_nothing(workers: Workers, server_url: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nreal, off = time.time, float(os.environ['CLOCK_OFF'])\ntime.time = lambda: real() + off\n"
    )
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256, 512, 1024])
    path = os.pathsep.join([str(tmp_path), *(str(Path(__file__).parents[2] / each) for each in (".", "plugins"))])
    both = [
        workers.start(server_url, "--lease", "60", environment={"PYTHONPATH": path, "CLOCK_OFF": str(off)})
        for off in (3600, -3600)
    ]
    assert [one.ends() for one in both] == [0, 0], [one.told for one in both]
    decided_once(server_url, jobs=3)
    with JobQueue.open(server_url) as queue:
        assert queue.status().failures == []
        assert all(abs(one.seen_s) < 600 for one in queue.status().workers)


def test_a_node_with_another_plugin_refuses_and_wins_nothing(workers: Workers, server_url: str, tmp_path: Path) -> None:
    other = tmp_path / "repeated.py"
    other.write_text(PLUGIN.read_text().replace("range(1, 25)", "range(1, 20)"))
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256])
        odd = workers.start(server_url, plugin=other)
        assert odd.ends() == 2
        assert "plugin repeated.py is file, source" in odd.told
        assert (queue.status().jobs[0].queued, stored_trials(server_url)) == (1, set())
    assert workers.start(server_url).ends() == 0
    decided_once(server_url, jobs=1)


def test_a_worker_whose_disk_is_full_leaves_and_its_job_goes_on_elsewhere(
    workers: Workers, server_url: str, tmp_path: Path
) -> None:
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256], attempts=1)
        full = workers.start(
            server_url, limit_bytes=2 << 20, environment={"KERNEL_REGISTRY_CACHE": str(tmp_path / "cache")}
        )
        assert full.ends() == 1, full.told
        assert "cannot be written to" in full.told
        (left,) = queue.status().workers
        assert (left.state, "cannot be written to" in left.message) == ("left", True)
        assert queue.status().jobs[0].queued == 1
    assert workers.start(server_url).ends() == 0
    decided_once(server_url, jobs=1)


@pytest.fixture
def proxy(server_folder: Path, server_url: str) -> Iterator[StallingProxy]:
    found = StallingProxy(server_folder / ".s.PGSQL.5432")
    yield found
    found.close()


def test_a_worker_cut_off_by_a_stalled_network_decides_nothing(
    workers: Workers, server_url: str, proxy: StallingProxy
) -> None:
    with JobQueue.open(server_url) as queue:
        queue_squares(queue, [256], trials=CONFIGS)
        cut_off = workers.start(f"postgresql://tuner@127.0.0.1:{proxy.port}/postgres", "--lease", "8")
        wait_for(lambda: len(stored_trials(server_url)) >= 4, cut_off)
        before = stored_trials(server_url)
        proxy.stalled.set()
        other = workers.start(server_url, "--lease", "60")
        wait_for(
            lambda: [one.op for one in queue.status().workers if one.held_s and one.uid != ""] == ["square"], other
        )
        wait_for(lambda: any(one.outcome == "expired" for one in queue.status().failures), other)
        proxy.stalled.clear()
        assert cut_off.ends() == 0, cut_off.told
        assert other.ends() == 0, other.told
    assert "the lease was lost" in cut_off.told or "lost after" in cut_off.told
    decided_once(server_url, jobs=1, before=before)
    assert before <= stored_trials(server_url)


def test_two_hundred_workers_share_one_server_that_takes_sixty_connections(server_url: str) -> None:
    count, jobs = 200, 400
    JobQueue.open(server_url).close()
    with JobQueue.open(server_url) as queue:
        plan = FleetPlan(new_uid(), "planner")
        queue.add(plan, [NewJob("NVIDIA H200", problems(rows)) for rows in range(jobs)])
        patiently = Patience(seconds=120)

        def work(number: int) -> int:
            one, done = a_worker(f"node{number}"), 0
            patiently(lambda: queue.register(one))
            while lease := patiently(lambda: queue.lease(one.uid, [one.device], [1], 60)):
                assert patiently(lambda lease=lease: queue.renew(lease.fence, 60))  # type: ignore[misc]
                assert patiently(lambda lease=lease: queue.complete(lease.fence))  # type: ignore[misc]
                done += 1
            return done

        with ThreadPoolExecutor(count) as pool:
            assert sum(pool.map(work, range(count))) == jobs
        status = queue.status()
        done = sum(one.done for one in status.jobs)
        counted(jobs=jobs, jobs_lost=jobs - done, workers=count)
        assert [(one.done, one.failed) for one in status.jobs] == [(jobs, 0)]
        assert (len(status.workers), status.failures) == (count, [])

"""A server that is started again while it is used: what was asked is asked once more, and done once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from registry.tuner.patience import Patience
from tuning_db import LostDatabaseError, Store

from .conftest import cluster, serving


@pytest.fixture
def folder() -> Iterator[Path]:
    with cluster() as made:
        yield made


def restarted(folder: Path, running: ExitStack, again: ExitStack, seconds: float) -> threading.Thread:
    """Stop the server now; a thread starts it again after so many seconds."""
    running.close()

    def start() -> None:
        time.sleep(seconds)
        again.enter_context(serving(folder))

    thread = threading.Thread(target=start)
    thread.start()
    return thread


@pytest.mark.timeout(180)
@pytest.mark.thorough
def test_what_is_stored_over_a_restart_is_stored_once(folder: Path, make: Any) -> None:
    told: list[str] = []
    patiently = Patience(told.append)
    with ExitStack() as running, ExitStack() as again:
        running.enter_context(serving(folder))
        with Store.open(f"postgresql://tuner@/postgres?host={folder}") as store:
            run = store.start_run(make.environment)
            first, second = make.trial(num_warps=1), make.trial(num_warps=2)
            store.add_trials(run, [first])
            thread = restarted(folder, running, again, 2.0)
            with pytest.raises(LostDatabaseError, match="cannot be reached"):
                store.trials()
            patiently(lambda: store.add_trials(run, [first, second]))
            thread.join()
            assert sorted(trial.uid for trial in store.trials()) == sorted([first.uid, second.uid])
            decision = make.decision(num_warps=2)
            assert [patiently(lambda: store.publish(run, decision)) for _ in range(2)] == [True, True]
            later = make.decision(num_warps=1, previous=decision.uid)
            assert store.publish(run, later)
            assert not store.publish(run, decision)
            assert [one.uid for one in store.winners()] == [later.uid]
    assert len(told) == 1
    assert "trying again for 60 s" in told[0]


@pytest.mark.timeout(180)
@pytest.mark.thorough
def test_a_server_that_stays_away_ends_the_patience(folder: Path, make: Any) -> None:
    with serving(folder):
        store = Store.open(f"postgresql://tuner@/postgres?host={folder}")
    began = time.monotonic()
    with store, pytest.raises(LostDatabaseError):
        Patience(seconds=1.0)(lambda: store.start_run(make.environment))
    assert time.monotonic() > began


@pytest.mark.timeout(60)
def test_a_deadlock_with_another_client_is_tried_again(emptied_url: str, server_with_tables: Any, make: Any) -> None:
    told: list[str] = []
    with Store.open(emptied_url) as store, ThreadPoolExecutor() as threads:
        run = store.start_run(make.environment)
        trial = make.trial()
        with server_with_tables.transaction():
            server_with_tables.execute("SET LOCAL deadlock_timeout = '30s'")  # the server undoes the other's
            server_with_tables.execute("LOCK TABLE trial IN ACCESS EXCLUSIVE MODE")
            stored = threads.submit(Patience(told.append), lambda: store.add_trials(run, [trial]))
            time.sleep(0.5)
            server_with_tables.execute("LOCK TABLE candidate IN ACCESS EXCLUSIVE MODE")
        stored.result(30)
        assert [one.uid for one in store.trials()] == [trial.uid]
    assert ["has undone a transaction" in text for text in told] == [True]

"""A network that stalls ends each question to a server, and the server frees what a client that was cut off held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from registry.fleet.heartbeat import Heartbeat
from tuning_db import JobQueue, LostDatabaseError, Store, UnreachableDatabaseError
from tuning_db.database import server
from tuning_db.database.answering import answered
from tuning_db.database.engine import open_database
from tuning_db.database.location import locate
from tuning_db.queue.tables import FleetJobRow

from .queue.conftest import Fleet, problems
from .stalling import StallingProxy

SILENCE_S = 0.5
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def proxy(postgresql_server: str, postgresql_url: str) -> Iterator[StallingProxy]:
    """Between clients and the server of an empty database."""
    found = StallingProxy(Path(postgresql_server) / ".s.PGSQL.5432")
    yield found
    found.close()


@pytest.fixture
def through(proxy: StallingProxy) -> str:
    """The database's URL by way of the proxy."""
    return f"postgresql://tuner@127.0.0.1:{proxy.port}/postgres"


@pytest.fixture
def fleet(postgresql_url: str) -> Iterator[Fleet]:
    """A fleet whose own connections do not stall."""
    with JobQueue.open(postgresql_url) as queue:
        yield Fleet(queue)


@pytest.mark.thorough
def test_each_question_of_a_worker_ends_and_may_be_repeated(proxy: StallingProxy, through: str, fleet: Fleet) -> None:
    fleet.plan(problems(1), problems(2))
    with JobQueue.open(through, silence_s=SILENCE_S) as queue:
        there = Fleet(queue)
        one = there.joins()
        lease = there.takes(one)
        questions: list[Callable[[], Any]] = [
            lambda: queue.renew(lease.fence, 60),
            lambda: queue.beat(one.uid, "working"),
            lambda: there.lease(one),
            lambda: queue.complete(lease.fence),
            queue.status,
        ]
        proxy.stalled.set()
        for ask in questions:
            with pytest.raises(LostDatabaseError):
                ask()
        proxy.stalled.clear()
        assert all(ask() is not False for ask in questions)
        assert there.takes(one).fence.job != lease.fence.job


def test_a_trial_whose_writing_stalled_is_stored_once(proxy: StallingProxy, through: str, make: Any) -> None:
    opened = open_database(locate(through), create=True, upgrade=True, silence_s=SILENCE_S)
    with Store(opened) as store:
        run = store.start_run(make.environment)
        store.add_trials(run, [make.trial(num_warps=1)])  # its connection stays open
        trial = make.trial(num_warps=2)
        proxy.stalled.set()
        with pytest.raises(LostDatabaseError):
            store.add_trials(run, [trial])
        proxy.stalled.clear()
        store.add_trials(run, [trial])
        store.add_trials(run, [trial])
        assert {one.uid for one in store.trials()} >= {trial.uid}
        assert store.statistics().trials == 2


def test_a_statement_ends_when_the_server_is_silent(proxy: StallingProxy, through: str) -> None:
    with JobQueue.open(through, silence_s=SILENCE_S) as queue, queue._opened.reading() as session:
        assert session.execute(text("SELECT pg_sleep(0)")).all()
        proxy.stalled.set()
        with pytest.raises(OperationalError, match=r"the server was silent for 0\.5 s"):
            session.execute(text("SELECT 1"))


@pytest.mark.thorough
def test_a_client_that_is_cut_off_within_a_transaction_holds_its_locks_no_longer(
    proxy: StallingProxy, through: str, fleet: Fleet
) -> None:
    fleet.plan(problems(1))
    with JobQueue.open(through, silence_s=SILENCE_S) as queue:

        def hold() -> None:
            with queue._opened.writing() as session:
                session.execute(select(FleetJobRow.id).with_for_update())
                proxy.stalled.set()
                assert fleet.lease(one) is None, "the row is locked"
                with fleet.queue._opened.writing() as other:
                    other.execute(select(FleetJobRow.id).with_for_update())  # waits until the server has freed it
                session.execute(select(FleetJobRow.id))

        one = fleet.joins()
        with pytest.raises(LostDatabaseError):
            hold()
    assert fleet.takes(one).op == "softmax"


@pytest.mark.thorough
def test_a_process_that_stood_still_within_a_transaction_may_repeat_it(postgresql_url: str) -> None:
    with JobQueue.open(postgresql_url, silence_s=SILENCE_S) as queue:

        def stand_still() -> None:
            with queue._opened.writing() as session:
                session.execute(text("SELECT 1"))
                time.sleep(3 * SILENCE_S)
                session.execute(text("SELECT 1"))

        with pytest.raises(LostDatabaseError):
            stand_still()
        assert queue.seconds() > 0


@pytest.mark.thorough
def test_a_heartbeat_notices_that_its_lease_is_lost_while_the_network_stalls(
    proxy: StallingProxy, through: str, fleet: Fleet
) -> None:
    fleet.plan(problems(1))
    with JobQueue.open(through, silence_s=SILENCE_S) as queue:
        one, lost = fleet.joins(), threading.Event()
        lease = fleet.takes(one, 1.5)
        with Heartbeat(queue, lease.fence, one.uid, 1.5, lost.set) as heart:
            proxy.stalled.set()
            assert lost.wait(60)
        assert heart.lost
        proxy.stalled.clear()


@pytest.mark.thorough
def test_dispatch_asks_no_longer_than_it_waits(proxy: StallingProxy, through: str, fleet: Fleet) -> None:
    assert answered(through, 30, lambda ask: ask("SELECT 1", {})) == [(1,)]
    proxy.stalled.set()
    with pytest.raises(UnreachableDatabaseError):
        answered(through, SILENCE_S, lambda ask: ask("SELECT 1", {}))
    readers = [one for one in threading.enumerate() if one.name == "kernel-registry: reads winners"]
    for one in readers:
        one.join(60)
    assert not any(one.is_alive() for one in readers), "its thread ends, too"


def test_a_pooler_that_takes_no_settings_is_asked_without_them(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PostgreSQL refuses a setting that it does not know in other words than a pooler: the text that is looked for
    monkeypatch.setattr(server, "_settings", lambda _: "-c no_such_setting=1")
    monkeypatch.setattr(server, "_REFUSED", "unrecognized configuration parameter")
    with JobQueue.open(postgresql_url) as queue:
        assert queue.seconds() > 0


def test_settings_of_the_url_stay(postgresql_url: str) -> None:
    url = f"{postgresql_url}&options=-c%20idle_in_transaction_session_timeout%3D1234"
    with JobQueue.open(url) as queue, queue._opened.reading() as session:
        assert session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar() == "1234ms"

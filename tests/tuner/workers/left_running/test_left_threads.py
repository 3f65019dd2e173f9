"""A thread that a stranger leaves running is told and charged to its plugin; one that sleeps or waits is no fault."""

from __future__ import annotations

import _thread
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config
from registry.tuner.verify.verdicts import WrongError
from registry.tuner.workers.integrity import Integrity, Trust
from registry.tuner.workers.left_running import LeftThreads
from registry.tuner.workers.left_running import threads as left_threads

BUSY = "it leaves a thread running: test_left_threads.py:burn"


class Ours(Implementation):
    """Of this module."""

    op, name = "square", "test.ours"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise NotImplementedError


ANOTHERS = type("Another", (Ours,), {"__module__": "another_plugin", "name": "another.one"})


class Threads:
    """Threads of a plugin, which ``end`` ends."""

    def __init__(self) -> None:
        self._ended: list[bool] = []
        self._works: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._sockets = socket.socketpair()
        self._begun: list[threading.Thread] = []
        self._unlisted: list[int] = []

    def begin(self, target: Callable[[], Any]) -> None:
        self._begun.append(threading.Thread(target=target, daemon=True))
        self._begun[-1].start()
        wait_for(self._begun[-1].ident)

    def begin_unlisted(self, target: Callable[[], Any]) -> None:
        self._unlisted.append(_thread.start_new_thread(target, ()))
        wait_for(self._unlisted[-1])

    def burn(self) -> None:
        while not self._ended:
            sum(range(1000))

    def burn_in_python(self) -> None:
        while not self._ended:
            pass

    def sleep(self) -> None:
        while not self._ended:
            time.sleep(0.3)

    def get(self) -> None:
        self._works.get()

    def receive(self) -> None:
        self._sockets[0].recv(1)

    def wake(self) -> None:
        """Burn, after a wait for ``go``."""
        self._works.get()
        self.burn()

    def go(self) -> None:
        self._works.put(True)

    def end(self) -> None:
        self._ended.append(True)
        self._works.put(True)
        self._sockets[1].send(b"0")
        for thread in self._begun:
            thread.join()
        while set(self._unlisted) & left_threads._frames().keys():
            time.sleep(0.001)
        for each in self._sockets:
            each.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    monkeypatch.setattr(left_threads, "_AT_FIRST", frozenset(left_threads._frames()))
    made = Threads()
    yield made
    made.end()


@pytest.fixture(params=["clock", "no_clock"])
def clocked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processor time of each thread, and without, as on other systems than Linux."""
    if request.param == "no_clock":
        monkeypatch.setattr(left_threads, "_clock_ns", None)


def wait_for(ident: int | None) -> None:
    """Until a thread has begun its own code."""
    while ident not in left_threads._strangers():
        time.sleep(0.001)


def wait_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(left_threads, "_sleep", sleep)


@pytest.mark.usefixtures("clocked")
@pytest.mark.parametrize("waits", ["sleep", "get", "receive"])
def test_a_thread_that_waits_in_its_own_code_does_not_run(
    threads: Threads, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads.begin(getattr(threads, waits))
    checked = LeftThreads()
    assert checked.running() == ()
    if waits != "sleep":
        wait_no_more(monkeypatch)
    assert checked.running() == ()


@pytest.mark.usefixtures("clocked")
def test_a_busy_thread_runs_beside_one_that_waits(threads: Threads) -> None:
    threads.begin(threads.sleep)
    threads.begin(threads.burn_in_python)
    assert list(map(str, LeftThreads().running())) == ["test_left_threads.py:burn_in_python"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the processor time of such a thread")
def test_a_busy_thread_that_python_does_not_list_runs(threads: Threads) -> None:
    threads.begin_unlisted(threads.burn)
    assert list(map(str, LeftThreads().running())) == ["test_left_threads.py:burn"]


def test_a_thread_that_waited_and_is_busy_now_runs(threads: Threads) -> None:
    threads.begin(threads.wake)
    checked = LeftThreads()
    assert checked.running() == ()
    threads.go()
    while not (found := checked.running()):
        pass  # it has just been woken
    assert list(map(str, found)) == ["test_left_threads.py:wake"]


def test_nothing_is_waited_for_where_no_stranger_has_a_thread(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_no_more(monkeypatch)
    assert LeftThreads().running() == ()


def test_a_thread_left_by_a_trial_is_told_and_costs_the_process_its_trust(threads: Threads) -> None:
    trust = Trust(Integrity())
    trust.admit(Ours())
    threads.begin(threads.get)
    assert (trust.breach(), trust.lost) == ("", False)
    threads.begin(threads.burn)
    assert (trust.breach(), trust.lost) == (BUSY, True)


@pytest.mark.parametrize("checked_first", [False, True])
def test_a_thread_left_by_an_import_is_held_against_its_plugin_alone(threads: Threads, checked_first: bool) -> None:
    trust = Trust(Integrity())
    threads.begin(threads.burn)
    if checked_first:
        # as beside the copy floor, which is no candidate
        assert trust.breach() == ""
    trust.admit(ANOTHERS())
    assert trust.breach() == ""
    for _ in range(2):
        with pytest.raises(WrongError, match=BUSY):
            trust.admit(Ours())
    assert (trust.breach(), trust.lost) == ("", False)

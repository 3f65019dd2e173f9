"""Processes that use processor time are found among the descendants of a worker, and those that wait are not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from registry.tuner.workers.integrity import Integrity, Trust
from registry.tuner.workers.left_running import LeftProcesses, adopts_orphans, processes

if sys.platform != "linux":
    pytest.skip("needs Linux's clocks of processes", allow_module_level=True)

BURNS = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
ORPHAN = f"""
import os, sys, time
from registry.tuner.workers.left_running import LeftProcesses, adopt_orphans
adopt_orphans()
left = LeftProcesses()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-S", "-c", {BURNS!r}])
    os._exit(0)
os.waitpid(child, 0)
(found,) = left.running()
found.end()
print(found, left.running())
"""


@pytest.fixture(autouse=True)
def _own_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that there are already, such as the one that fresh processes are forked from, work for other tests."""
    children = processes._children
    others = {*children(os.getpid())}
    monkeypatch.setattr(processes, "_children", lambda pid: [each for each in children(pid) if each not in others])


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    begun = subprocess.Popen(words)
    try:
        yield begun
    finally:
        begun.kill()
        begun.wait()


def burner() -> tuple[str, ...]:
    return sys.executable, "-S", "-c", BURNS


def test_a_process_that_runs_is_found_and_ended() -> None:
    left = LeftProcesses()
    with process(*burner()) as begun:
        (found,) = left.running()
        assert found.pid == begun.pid
        assert str(found).startswith(f"{sys.executable} -S"[: processes._MOST_SHOWN - 3])
        assert len(str(found)) <= processes._MOST_SHOWN
        found.end()
        assert left.running() == ()
        found.end()  # which has ended already


def test_a_process_that_waits_is_not_found_and_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    left, looks = LeftProcesses(), list[float]()
    monkeypatch.setattr(processes, "_sleep", lambda seconds: looks.append(seconds) or time.sleep(seconds))
    with process("sleep", "60"):
        deadline = time.monotonic() + 30
        while left.running() and time.monotonic() < deadline:  # it begins by being loaded
            pass
        assert left.running() == ()
        looks.clear()
        assert left.running() == ()
        assert looks == []


def test_a_process_behind_one_that_waits_is_found() -> None:
    left = LeftProcesses()
    with process("sh", "-c", f"{sys.executable} -S -c '{BURNS}'; true"):
        deadline = time.monotonic() + 30
        while not (found := left.running()) and time.monotonic() < deadline:
            pass
        assert any("-S" in str(one) or "sh" in str(one) for one in found)
        for one in found:
            one.end()


def test_processes_that_are_accepted_are_left_out() -> None:
    left = LeftProcesses()
    with process(*burner()):
        left.accept()
        assert left.running() == ()


def test_those_that_torch_compiles_in_are_left_out() -> None:
    left = LeftProcesses()
    with process(*burner(), "/torch/_inductor/compile_worker/__main__.py"):
        time.sleep(0.2)
        assert left.running() == ()


def test_without_a_child_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_child(*_: object) -> None:
        raise ChildProcessError

    monkeypatch.setattr(processes, "_waitid", no_child)
    monkeypatch.setattr(processes, "_listdir", lambda _: pytest.fail("it looked"))
    assert LeftProcesses().running() == ()


def test_a_process_that_runs_no_candidates_alone_ends_none() -> None:
    trust = Trust(Integrity())
    with process(*burner()) as begun:
        time.sleep(0.1)
        assert not adopts_orphans()
        assert "process running" not in trust.breach()
        assert begun.poll() is None


def test_a_process_whose_parent_has_ended_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORPHAN], stdout=subprocess.PIPE, text=True, check=True, env=os.environ
    )
    assert done.stdout.endswith(" ()\n")
    assert " -S" in done.stdout or "..." in done.stdout

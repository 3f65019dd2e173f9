"""Which processes are of one run: a run, what starts its children for it, and these; not what a child has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

import pytest

from registry.device import Device
from registry.tuner.measure import family
from registry.tuner.measure.clocks import Clocks
from registry.tuner.measure.family import is_of_the_run
from registry.tuner.measure.nvml import Gpu

if sys.platform != "linux":
    pytest.skip("processes are looked up as Linux shows them", allow_module_level=True)

CHILDREN = "sleep 600 & echo $!; sleep 600 & echo $!; wait"


@pytest.fixture(scope="module")
def starter() -> Iterator[tuple[int, int, int]]:
    """The process that starts two others for this one, and these two."""
    with subprocess.Popen(["sh", "-c", CHILDREN], stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        assert shell.stdout is not None
        yield shell.pid, int(shell.stdout.readline()), int(shell.stdout.readline())
        os.killpg(shell.pid, signal.SIGKILL)


def test_a_run_and_its_children_are_of_one_run(starter: tuple[int, int, int]) -> None:
    shell, one, other = starter
    assert [is_of_the_run(pid, one) for pid in (other, shell, os.getpid())] == [True, True, True]


def test_what_a_child_starts_is_not_of_the_run_nor_is_who_started_it_all(starter: tuple[int, int, int]) -> None:
    shell, one, _ = starter
    assert not is_of_the_run(one, shell), "a candidate's own process may compute"
    assert not is_of_the_run(os.getppid(), one)
    assert not is_of_the_run(1, one)


def test_who_has_ended_or_lost_its_parent_is_of_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not is_of_the_run(gone.pid, os.getpid())
    monkeypatch.setattr(family, "_parent", lambda _: 1)
    assert not is_of_the_run(os.getppid(), os.getpid()), "all that lost their parents have one"


class Driver:
    """Lists processes on the device, as NVML does."""

    def __init__(self, *listed: int) -> None:
        self.listed = listed

    def others(self, own: set[int]) -> frozenset[int]:
        return frozenset(self.listed) - own


def test_a_gpu_is_contended_by_processes_of_others_alone() -> None:
    def contended(*listed: int) -> bool:
        return Clocks(Device.of("cpu"), cast("Gpu", Driver(*listed))).contended()

    assert not contended(os.getpid(), os.getppid())
    with subprocess.Popen(["sleep", "600"]) as child:
        assert contended(os.getpid(), child.pid)
        child.kill()

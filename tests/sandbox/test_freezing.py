"""Processes that are stopped do nothing until they may go on; those that they forked, too."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.sandbox import freezing
from registry.sandbox.freezing import ProcessTree, descendants

COUNTS = """
import os, sys, time
for _ in range({forks}):
    if os.fork() == 0:
        os.setsid()
with open(sys.argv[1] + str(os.getpid()), "ab", buffering=0) as file:
    while True:
        file.write(b".")
        time.sleep(0.002)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[ProcessTree]:
    process = subprocess.Popen([sys.executable, "-c", COUNTS.format(forks=2), f"{tmp_path}/count"])
    found = ProcessTree(process.pid)
    until = time.monotonic() + 20
    while len(list(tmp_path.glob("count*"))) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    yield found
    found.freeze()
    for pid in reversed(descendants(process.pid)):
        ProcessTree(pid).kill()
    process.wait()


def counted(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("count*"))


@pytest.mark.parametrize("tells_children", [True, False], ids=["children", "parents"])
def test_a_stopped_tree_does_nothing_and_goes_on_when_it_may(
    tree: ProcessTree, tmp_path: Path, tells_children: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tells_children and not freezing._tells_children():
        pytest.skip("this kernel does not list children")
    monkeypatch.setattr(freezing, "_tells_children", lambda: tells_children)
    assert tree.size == 4
    for _ in range(3):
        tree.freeze()
        before = counted(tmp_path)
        time.sleep(0.03)
        assert counted(tmp_path) == before
        tree.thaw()
        until = time.monotonic() + 10
        while counted(tmp_path) == before and time.monotonic() < until:
            time.sleep(0.005)
        assert counted(tmp_path) > before

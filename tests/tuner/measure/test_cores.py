"""A process that shares its core waits for it, and one that sleeps does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from registry.tuner.measure import cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells how long threads wait for a core")

_PINNED = "import os, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
_WATCHED = """
import runpy
cores = runpy.run_path({file!r})
lost, waits, until = cores["preemptions"](), cores["CoreWaits"](), time.monotonic() + 0.3
{work}
print(waits.are_long(), cores["preemptions"]() > lost)
"""
_BUSY = "while time.monotonic() < until: pass"


@pytest.fixture
def neighbour() -> Iterator[None]:
    """Keeps the first core busy."""
    with subprocess.Popen([sys.executable, "-c", _PINNED + "while True: pass"]) as busy:
        yield
        busy.kill()


def watched(work: str) -> list[str]:
    """Whether the waits on the first core are long, and whether the core was lost, in a process without torch."""
    done = subprocess.run(
        [sys.executable, "-c", _PINNED + _WATCHED.format(file=cores.__file__, work=work)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.usefixtures("neighbour")
def test_beside_another_program_on_its_core_a_process_waits_long_and_loses_it() -> None:
    assert watched(_BUSY) == ["True", "True"]


def test_a_process_that_sleeps_does_not_wait_for_a_core() -> None:
    assert watched("time.sleep(1)")[0] == "False"

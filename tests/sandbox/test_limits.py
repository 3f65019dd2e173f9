"""A submission takes what it can get: time, memory, files, processes. It ends, and so does all that it has started."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from registry.errors import InvalidArgumentError
from registry.sandbox.limits import SandboxLimits
from registry.sandbox.trial import SandboxedSession

from .sandboxing import LIMITS, needs_bubblewrap, reason

MEMORY = "import torch\nheld = []\ndef square(x):\n    while True:\n        held.append(torch.ones(1 << 26))\n"
DISK = """
def square(x):
    with open("/tmp/full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
"""
MANY_FILES = """
import os

def square(x):
    for number in range(1 << 20):
        with open(f"/dev/shm/{number}", "wb", buffering=0) as file:
            file.write(bytes(1 << 22))
"""
PROCESSES = """
import os, resource

def square(x):
    held = []
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            os.pause() if hasattr(os, "pause") else __import__("signal").pause()
        held.append(pid)
    return x * x
"""
SLEEPS = "import time\ndef square(x):\n    time.sleep(1000)\n"
SPINS_WITHOUT_SIGNALS = """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)

def square(x):
    while True:
        pass
"""
FORKS = """
import os, time

def square(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                x.fill_(1.0)
                time.sleep(0.001)
        os._exit(0)
    return x * x
"""


MARK = "7.25"
"""Seconds of a limit, which the command lines of this file's sandboxes hold."""


def test_limits_are_more_than_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="run_s is 0"):
        SandboxLimits(run_s=0)


@needs_bubblewrap
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "statuses", "told"),
    [
        (MEMORY, {"out_of_memory"}, "memory"),
        (DISK, {"error", "crash"}, "Errno 28|Errno 27|SIGXFSZ"),
        (MANY_FILES, {"error"}, "Errno 28"),
        (SLEEPS, {"timeout"}, "did not answer within 3 s"),
        (SPINS_WITHOUT_SIGNALS, {"timeout"}, "did not answer within 3 s"),
        ("import os\ndef square(x):\n    os.kill(os.getpid(), 11)\n", {"crash"}, "SIGSEGV"),
        ("import os\ndef square(x):\n    os._exit(0)\n", {"crash"}, "exit code 0"),
        (
            "import sys\ndef square(x):\n    print('y' * (1 << 24))\n    sys.exit('its last words')\n",
            {"error"},
            "SystemExit",
        ),
        ("import os\ndef square(x):\n    os.kill(1, 9)\n    os.kill(-1, 19)\n", {"timeout", "error", "crash"}, ""),
    ],
    ids=["memory", "disk", "files", "sleep", "spin", "segfault", "exit", "prints", "kills"],
)
def test_who_takes_too_much_is_ended_with_its_reason(
    text: str, statuses: set[str], told: str, tmp_path: Path, session: SandboxedSession
) -> None:
    limits = replace(LIMITS, run_s=3.0) if "timeout" in statuses else LIMITS
    status, message = reason(text, tmp_path, session, limits)
    assert status in statuses, message
    assert any(part in message for part in told.split("|")), message


@needs_bubblewrap
@pytest.mark.thorough
def test_forks_neither_outlive_a_trial_nor_disturb_it(tmp_path: Path, session: SandboxedSession) -> None:
    status, message = reason(FORKS, tmp_path, session, replace(LIMITS, run_s=float(MARK)))
    # a fork that writes to the inputs is found, and ends with all the others
    assert status in {"ok", "wrong_result"}, message
    assert running() == []


def running() -> list[str]:
    """Command lines of sandboxes' processes that this one has started, after the kernel has had time to end them."""
    until = time.monotonic() + 5
    while True:
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    text = (place / "cmdline").read_text(errors="replace")
                except OSError:
                    continue
                if MARK in text:
                    found.append(text)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


@needs_bubblewrap
@pytest.mark.thorough
def test_a_crowd_of_processes_is_stopped_between_requests_and_ended(tmp_path: Path, session: SandboxedSession) -> None:
    status, message = reason(PROCESSES, tmp_path, session, replace(LIMITS, processes=64, run_s=float(MARK)))
    assert status in {"error", "crash"}, message
    assert "64 at most" in message or "Resource temporarily unavailable" in message
    assert running() == []

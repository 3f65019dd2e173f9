"""A submission cheats the clock: by patched timers, answers that come early, and work before or after its time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from registry.sandbox.trial import SandboxedSession

from .sandboxing import GOOD, loaded, needs_bubblewrap, reason, tried, unprotected

pytestmark = [needs_bubblewrap, pytest.mark.thorough]

NAPS_US = 2_000.0
PATCHED = """
import time
nap = time.sleep
time.perf_counter_ns = time.perf_counter = time.monotonic = time.monotonic_ns = time.time_ns = lambda: 0

def square(x):
    nap(0.002)
    return x * x
"""
# the sandbox's end of the connection is some descriptor; the answer to a request repeats its number
EARLY = """
import os, socket, stat, threading, time

def ends():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                yield number
        except OSError:
            pass

def square(x):
    for number in ends():
        with socket.socket(fileno=os.dup(number)) as end:
            end.send({data})
    return x * x
"""
LATE = """
import threading, time, torch

def square(x):
    y = torch.empty_like(x)
    def work():
        time.sleep(0.003)
        torch.mul(x, x, out=y)
        held.copy_(y)
    held = y
    threading.Thread(target=work).start()
    return y
"""
# writes into the slots by itself, some time after it has said that it is done
LATE_IN_SLOTS = """
import gc, threading, time, torch

def slots(x):
    base = x.untyped_storage()
    whole = torch.empty(0, dtype=torch.float32).set_(base)
    start, step = x.storage_offset(), x.numel()
    return whole[start + step:start + 2 * step]

def square(x):
    y = slots(x)
    def work():
        time.sleep(0.02)
        for _ in range(50):
            torch.mul(x, x, out=y)
            time.sleep(0.001)
    threading.Thread(target=work).start()
    return y
"""
AHEAD = """
import threading, time

ticks, seen = [0], []

def work():
    while True:
        time.sleep(0.0005)
        ticks[0] += 1

def square(x):
    if not seen:
        threading.Thread(target=work, daemon=True).start()
    elif ticks[0] - seen[-1] > 100:
        raise RuntimeError(f"it worked {ticks[0] - seen[-1]} times since its last call")
    seen.append(ticks[0])
    return x * x
"""

# works for all calls of a request at once, which its caller's frame tells it
AT_ONCE = """
import sys, time

def square(x):
    frame = sys._getframe()
    while frame is not None and "count" not in frame.f_locals:
        frame = frame.f_back
    if frame is None or frame.f_locals["number"] == frame.f_locals["first"]:
        time.sleep(0.01)
    return x * x
"""


def test_patched_timers_change_no_time(
    tmp_path: Path, session: SandboxedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("perf_counter_ns", "perf_counter", "monotonic", "monotonic_ns", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))
    slow = unprotected(PATCHED)
    began = time.perf_counter_ns()
    slow(torch.ones(2))
    assert time.perf_counter_ns() - began == 0
    monkeypatch.undo()
    found = tried(PATCHED, tmp_path, session)
    assert found.outcome.status == "ok"
    assert min(found.outcome.samples) >= NAPS_US


@pytest.mark.parametrize(
    ("data", "status", "told"),
    [
        ("b'done' + bytes(16)", "error", "what is no message"),
        ("b'{\"ok\": true}'", "error", "another request than it was asked"),
        ("b'x' * 100_000", "error", "a packet of more than 65536 bytes"),
        ("__import__('pickle').dumps(print)", "error", "what is no message"),
    ],
    ids=["guessed", "ok", "long", "pickle"],
)
def test_an_answer_that_it_sends_itself_is_refused(
    data: str, status: str, told: str, tmp_path: Path, session: SandboxedSession
) -> None:
    found, message = reason(EARLY.format(data=data), tmp_path, session)
    assert found == status
    assert told in message


def test_work_that_is_done_after_the_answer_is_wrong(tmp_path: Path, session: SandboxedSession) -> None:
    x, late = torch.randn(4096), unprotected(LATE)
    y = late(x)
    time.sleep(0.1)
    torch.testing.assert_close(y, x * x)
    for text in (LATE, LATE_IN_SLOTS):
        status, message = reason(text, tmp_path, session)
        assert status == "wrong_result"
        assert "expected" in message


def test_nothing_runs_between_calls(tmp_path: Path, session: SandboxedSession) -> None:
    """A thread that would look at inputs while they are written, or work ahead, does not run meanwhile."""
    x, ahead = torch.randn(4096), unprotected(AHEAD)
    ahead(x)
    time.sleep(0.5)
    with pytest.raises(RuntimeError, match="since its last call"):
        ahead(x)
    with loaded(AHEAD, tmp_path, session) as call:
        for _ in range(3):
            torch.testing.assert_close(call(x), x * x)
            time.sleep(0.5)


def test_work_on_several_calls_at_once_is_found(tmp_path: Path, session: SandboxedSession) -> None:
    status, message = reason(AT_ONCE, tmp_path, session)
    assert status == "wrong_result"
    assert "it works on several at once" in message


def test_an_honest_one_is_right_and_its_time_tells_what_asking_took(tmp_path: Path, session: SandboxedSession) -> None:
    found = tried(GOOD, tmp_path, session)
    assert found.outcome.status == "ok"
    assert found.calls > 1
    assert found.request_us > 0
    assert found.limited_by in {"control group", "resource limits"}

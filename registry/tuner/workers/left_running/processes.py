"""Processes that a candidate leaves running: they take a core from all that is measured after."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# bound at import, so that a candidate's later patch is not called
_clock_ns, _now_ns, _sleep, _open = getattr(time, "clock_gettime_ns", None), time.monotonic_ns, time.sleep, open
_waitid, _kill, _listdir = getattr(os, "waitid", None), os.kill, os.listdir

_GRACE_S = 0.02
"""Time in which work that is about to end may end."""
_LOOK_S, _LOOKS = 0.01, 20
"""A busy process of a machine with other work may get no core for some looks."""
_RUNS_NS = 5_000_000
"""The processor time that a process which runs uses in all looks, at least."""
_WOKE_NS, _WOKE_SHARE = 2_000_000, 0.01
"""What a process that was idle may use until the next check, and in addition of each second, and still be idle."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: processes whose parents end become children of this one, and not of the system's first."""
_INDUCTORS = ("_inductor", "compile_worker")
"""What the command line of torch.compile's own compiling processes has, which start while others are timed."""
_MOST_SHOWN = 60


class LeftProcess(NamedTuple):
    """A process that runs, and its command line."""

    pid: int
    command: str

    def __str__(self) -> str:
        return self.command

    def end(self) -> None:
        """Kill the process."""
        with suppress(OSError):
            _kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


_adopters: set[int] = set()
"""The numbers of processes that have adopted: a forked child has not."""


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents have ended; on Linux, else nothing.

    For a process that runs nothing but candidates: all that it has begun may be ended then.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
            _adopters.add(os.getpid())


def adopts_orphans() -> bool:
    """True once ``adopt_orphans`` has made this process a parent of orphans."""
    return os.getpid() in _adopters


class LeftProcesses:
    """Descendants of this process that use processor time and do not end within 20 ms; none but on Linux.

    Without a child a check takes a microsecond. A process that was idle is not waited for again until it has used
    processor time. Those that torch.compile compiles in are left out.
    """

    def __init__(self) -> None:
        self._idle: dict[int, tuple[int, int]] = {}
        """Process -> its processor time and when it was read, in ns."""
        self._accepted: set[int] = set()

    def running(self) -> tuple[LeftProcess, ...]:
        """The processes that run, except those accepted."""
        if not _has_child():
            return ()
        spent = _spent(set(_descendants(os.getpid())) - self._accepted)
        new = {pid for pid, ns in spent.items() if self._has_woken(pid, ns) and not _is_inductors(pid)}
        if not new:
            return ()
        _sleep(_GRACE_S)
        found = _running(new)
        now = _now_ns()
        self._idle |= {pid: (ns, now) for pid, ns in _spent(new - found).items()}
        return tuple(LeftProcess(pid, _command(pid)) for pid in sorted(found))

    def accept(self) -> None:
        """Leave out, from now on, the descendants that exist at this moment."""
        if _has_child():
            self._accepted |= set(_descendants(os.getpid()))

    def _has_woken(self, pid: int, spent_ns: int) -> bool:
        before = self._idle.get(pid)
        if before is None:
            return True
        was_ns, at_ns = before
        return spent_ns - was_ns > _WOKE_NS + _WOKE_SHARE * (_now_ns() - at_ns)


def _has_child() -> bool:
    if sys.platform != "linux" or _waitid is None:
        return False
    try:
        _waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _running(pids: Collection[int]) -> set[int]:
    """The processes that use processor time in the next looks, which end early where that is plain."""
    first, found, waiting = _spent(pids), set[int](), set(pids)
    for _ in range(_LOOKS):
        _sleep(_LOOK_S)
        now = _spent(waiting)
        found |= {pid for pid, ns in now.items() if ns - first.get(pid, ns) > _RUNS_NS}
        waiting = {pid for pid in now.keys() - found if not _is_asleep(pid)}
        if not waiting:
            break
    return found


def _descendants(pid: int) -> Iterator[int]:
    """The processes that a process has begun, and those that they have."""
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        found = list[int]()
        for thread in _listdir(f"/proc/{pid}/task"):
            with suppress(OSError), _open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
        return found
    return []


def _spent(pids: Collection[int]) -> dict[int, int]:
    """The processor time in ns of those of the processes that there still are, by Linux's clocks of them."""
    found = dict[int, int]()
    for pid in pids:
        with suppress(OSError):
            assert _clock_ns is not None
            found[pid] = int(_clock_ns((~pid << 3) | 2))
    return found


def _is_asleep(pid: int) -> bool:
    """Whether a process waits or has ended; False if one of its threads is ready to run."""
    threads = list[str]()
    with suppress(OSError):
        threads = _listdir(f"/proc/{pid}/task")
    return all(_state(f"/proc/{pid}/task/{thread}/stat") in {"S", "D", "Z", "X", ""} for thread in threads)


def _state(path: str) -> str:
    """The letter for a thread's state in Linux's file of it; "" if the thread has ended."""
    try:
        with _open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return f"process {pid}"
    told = " ".join(word for word in words if word)
    shown = "".join(letter if letter.isprintable() else " " for letter in told)
    return (shown[: _MOST_SHOWN - 3] + "..." if len(shown) > _MOST_SHOWN else shown) or f"process {pid}"


def _is_inductors(pid: int) -> bool:
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return False
    return all(part in told for part in _INDUCTORS)

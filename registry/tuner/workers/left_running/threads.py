"""Threads that a candidate leaves running: they take a core, and the interpreter's lock, from all that comes after."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

# bound at import, so that a candidate's later patch is not called
_frames, _own, _sleep, _threads = sys._current_frames, threading.get_ident, time.sleep, threading.enumerate
_clock_of = getattr(time, "pthread_getcpuclockid", None)
_clock_ns, _now_ns, _open = getattr(time, "clock_gettime_ns", None), time.monotonic_ns, open

_GRACE_S = 0.02
"""Time in which work that is about to end may end."""
_LOOK_S, _LOOKS = 0.01, 20
"""A busy thread of a machine with other work may get no core for some looks."""
_RUNS_NS = 5_000_000
"""The processor time that a thread which runs uses in all looks, at least."""
_NOTHING_NS, _ASLEEP = 100_000, 3
"""A thread that used no more in so many looks, and is not ready to run, is idle."""
_WOKE_NS, _WOKE_SHARE = 2_000_000, 0.01
"""What a thread that was idle may use until the next check, and in addition of each second, and still be idle."""
_PYTHONS = sysconfig.get_paths()["stdlib"]
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = Path(torch.__file__).parent
_OTHERS = tuple(f"{folder}{os.sep}" for folder in (_TORCH, _TORCH.parent / "triton", Path(__file__).parents[3]))
_AT_FIRST = frozenset(_frames())
"""Threads that were there before any plugin was."""


class LeftRunning(NamedTuple):
    """A thread that runs, and the outermost function of a stranger in its stack: mostly what it was started with."""

    ident: int
    native: int | None
    code: CodeType

    def __str__(self) -> str:
        return f"{Path(self.code.co_filename).name}:{self.code.co_name}"


class _Look(NamedTuple):
    """A thread at a look: its processor time in ns, None where the system does not tell, and where it is."""

    native: int | None
    spent_ns: int | None
    at_ns: int
    code: CodeType
    instruction: int

    def spent_since(self, before: _Look) -> int | None:
        """The processor time in ns that it has used, None where that is not known."""
        return None if self.spent_ns is None or before.spent_ns is None else self.spent_ns - before.spent_ns

    def has_woken_since(self, before: _Look) -> bool:
        """Whether what was idle is another thread by now, or has used processor time."""
        spent = self.spent_since(before)
        allowed = _WOKE_NS + _WOKE_SHARE * (self.at_ns - before.at_ns)
        return self.native != before.native or (self.is_elsewhere(before) if spent is None else spent > allowed)

    def is_elsewhere(self, before: _Look) -> bool:
        """Whether a thread has moved, or is in a loop: one that waits is in a call."""
        jumps = self.instruction >= 0 and "JUMP" in dis.opname[self.code.co_code[self.instruction]]
        return jumps or (self.code, self.instruction) != (before.code, before.instruction)

    def waits_since(self, before: _Look) -> bool:
        """True if the thread has used no processor time although it could have: one without a core is ready to run."""
        spent = self.spent_since(before)
        return spent is not None and spent < _NOTHING_NS and _is_asleep(self.native)


class LeftThreads:
    """Python's threads that run beside this one and do not end within 20 ms.

    A thread runs if its stack has code that is neither of Python's library, nor of torch, Triton or this package, and
    it uses processor time: one that sleeps or waits for work does not. Where no such thread is there, a check takes
    microseconds; one that was idle is not waited for again until it has used processor time.
    """

    def __init__(self) -> None:
        self._accepted: set[tuple[int, int | None]] = set()
        self._idle: dict[int, _Look] = {}

    def running(self) -> tuple[LeftRunning, ...]:
        """The threads that run, except those accepted."""
        codes = _strangers()
        if not codes:
            return ()
        new = {ident: seen for ident, seen in _seen(codes.keys()).items() if self._is_new(ident, seen)}
        if not new:
            return ()
        _sleep(_GRACE_S)
        found = _running(new.keys())
        self._idle = {ident: seen for ident, seen in self._idle.items() if ident not in new}
        self._idle |= _seen(new.keys() - found)
        return tuple(LeftRunning(ident, new[ident].native, codes[ident]) for ident in sorted(found))

    def accept(self, thread: LeftRunning) -> None:
        """Leave a thread out from now on, as long as it lives."""
        self._accepted.add((thread.ident, thread.native))

    def _is_new(self, ident: int, seen: _Look) -> bool:
        before = self._idle.get(ident)
        return (ident, seen.native) not in self._accepted and (before is None or seen.has_woken_since(before))


def _strangers() -> dict[int, CodeType]:
    """The other threads that run code of a stranger, also by Python's library, and the outermost such code."""
    own, found = _own(), dict[int, CodeType]()
    for ident, frame in _frames().items():
        if ident != own and ident not in _AT_FIRST and (code := _begun(frame)) is not None:
            found[ident] = code
    return found


def _running(idents: Collection[int]) -> set[int]:
    """The threads that use processor time in the next looks, which end early where that is plain."""
    first = last = _seen(idents)
    moved, asleep, found = dict.fromkeys(idents, 0), dict.fromkeys(idents, 0), set[int]()
    waiting = set(idents)
    for _ in range(_LOOKS):
        _sleep(_LOOK_S)
        now = _seen(waiting)
        for ident, seen in now.items():
            spent = seen.spent_since(first[ident])
            moved[ident] += seen.is_elsewhere(last[ident])
            asleep[ident] = asleep[ident] + 1 if seen.waits_since(last[ident]) else 0
            if moved[ident] >= _LOOKS / 2 if spent is None else spent > _RUNS_NS:
                found.add(ident)
        waiting = {ident for ident in now.keys() - found if asleep[ident] < _ASLEEP}
        if not waiting:
            break
        last = now
    return found


def _seen(idents: Collection[int]) -> dict[int, _Look]:
    """The threads as they are now, those left out that have ended."""
    natives = {thread.ident: thread.native_id for thread in _threads()}
    frames, at = _frames(), _now_ns()
    found = dict[int, _Look]()
    for ident in idents:
        if ident in frames:
            frame, native = frames[ident], natives.get(ident) or _native(ident)
            found[ident] = _Look(native, _spent(native), at, frame.f_code, frame.f_lasti)
    return found


def _native(ident: int) -> int | None:
    """Linux's number of a thread that Python's ``threading`` does not list, None on other systems."""
    if _clock_of is None or sys.platform != "linux":
        return None
    try:
        return ~(int(_clock_of(ident)) >> 3)
    except OSError:
        return None


def _spent(native: int | None) -> int | None:
    """The processor time of a thread in ns, by Linux's clock of it; None on other systems, or if it has ended."""
    if native is None or _clock_ns is None or sys.platform != "linux":
        return None
    try:
        # the clock as pthread_getcpuclockid makes it, which may not be asked for a thread that has ended since
        return int(_clock_ns((~native << 3) | 6))
    except OSError:
        return None


def _is_asleep(native: int | None) -> bool:
    """Whether a thread waits, which the system tells on Linux only: False if it is ready to run, or not known."""
    try:
        with _open(f"/proc/self/task/{native}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in {"S", "D"}
    except (OSError, IndexError):
        return False


def _begun(frame: FrameType) -> CodeType | None:
    """The code of the outermost frame of a stack that is a stranger's, None without one."""
    found: CodeType | None = None
    at: FrameType | None = frame
    while at is not None:
        found = at.f_code if _is_strangers(at.f_code.co_filename) else found
        at = at.f_back
    return found


def _is_strangers(file: str) -> bool:
    is_pythons = file.startswith(_PYTHONS) and _SITE not in file
    return not is_pythons and not file.startswith(("<frozen", *_OTHERS))

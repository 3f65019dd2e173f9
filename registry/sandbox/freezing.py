"""Stopping all processes of a sandbox, and letting them go on.

A submission's processes run while they have a request, and at no other time: they cannot look at inputs while these are
written, work ahead of the clock, or finish late what they had said was done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

_PATIENCE_S = 2.0
_STOPPED = frozenset("TtZXxD")
"""States of a thread that runs no more of its program: with a signal to stop pending, D (in the kernel) ends in T."""


class FreezingError(Exception):
    """Processes that do not stop."""


class ProcessTree:
    """The process with number ``root``, and all that descend from it."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._stopped: list[int] = []

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(descendants(self._root))

    def freeze(self) -> int:
        """Stop every process and return their number; the tree is looked through until none is new.

        Raises FreezingError after two seconds.
        """
        until = time.monotonic() + _PATIENCE_S
        stopped: dict[int, None] = {}
        while True:
            found = descendants(self._root)
            new = [pid for pid in found if pid not in stopped]
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            stopped.update(dict.fromkeys(new))
            if not new and all(map(_is_stopped, found)):
                break
            if time.monotonic() > until:
                raise FreezingError(f"{len(found)} processes do not stop")
        self._stopped = list(stopped)
        return len(found)

    def thaw(self) -> None:
        """Let all go on, parents first."""
        for pid in self._stopped:
            _signal(pid, signal.SIGCONT)
        self._stopped = []

    def kill(self) -> None:
        """End the first process: where it is the first of its process namespace, the kernel ends all others."""
        _signal(self._root, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Numbers of a process and all that descend from it, parents first."""
    children = _children if _tells_children() else _children_by_parents()
    found, place = [root], 0
    while place < len(found):
        found += children(found[place])
        place += 1
    return found


@cache
def _tells_children() -> bool:
    """Whether the kernel lists the children of a thread; some are built without."""
    return Path("/proc/thread-self/children").exists()


def _children_by_parents() -> Callable[[int], list[int]]:
    """The children of a process, by what all processes of the machine tell of their parents."""
    found: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = (place / "stat").read_text(errors="replace")
                found.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(place.name))
    return lambda pid: found.get(pid, [])


def _children(pid: int) -> list[int]:
    """The children of all threads of a process; none of one that is gone."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (task / "children").read_bytes().split())
    return children


def _is_stopped(pid: int) -> bool:
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return all(_state(task) in _STOPPED for task in tasks)


def _state(task: Path) -> str:
    try:
        text = (task / "stat").read_text(errors="replace")
    except OSError:
        return "X"
    # the name in brackets may hold anything
    return text.rpartition(")")[2].split()[0]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

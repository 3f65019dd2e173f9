"""The cores that a run's compilers may use; on a GPU some are kept free, so that no launch waits for a core."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...device import Device

_KEPT_FREE = 2
"""Hardware threads kept free for the run, and for each worker: one core, if a core has two threads.

Verifying launches kernels, and takes a seventh longer where compilers share a core with it.
"""
_FEW = 8
"""A machine of at most this many hardware threads keeps only one free for each worker."""

_ANYWHERE = "-"

Siblings = Callable[[int], Sequence[int]]
"""Returns the numbers of all threads of execution on the core of a given one, itself included."""


def compiling_cores(device: Device, workers: int = 1, siblings: Siblings | None = None) -> tuple[int, ...]:
    """Numbers of the cores that compilers may run on beside ``workers`` workers, at least half of all.

    All on a CPU, where nothing is measured meanwhile. Empty where processes cannot be bound to cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    cores = sorted(os.sched_getaffinity(0))
    if device.type != "cuda" or len(cores) == 1:
        return tuple(cores)
    return tuple(core for core in cores if core not in _kept_free(cores, workers, siblings or _siblings))


def as_argument(cores: Sequence[int]) -> str:
    """The cores as a word of a command line; ``-`` where there are none to be bound to."""
    return ",".join(map(str, cores)) or _ANYWHERE


def bind_to(argument: str) -> None:
    """Let this process run on these cores alone, as far as they are still there."""
    if argument != _ANYWHERE:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {int(core) for core in argument.split(",")})


def _kept_free(cores: Sequence[int], workers: int, siblings: Siblings) -> set[int]:
    half = len(cores) // 2
    if len(cores) <= _FEW:
        return set(cores[: min(workers, half)])
    free: set[int] = set()
    for core in cores:
        if len(free) >= min(_KEPT_FREE * (1 + workers), half):
            break
        free |= {core, *siblings(core)} & set(cores)
    return free


def _siblings(core: int) -> list[int]:
    """The hardware threads on the core of thread ``core``, as Linux tells; a virtual machine often lists each alone."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        return [number for part in text.strip().split(",") for number in _span(part)]
    except (OSError, ValueError):
        return [core]


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)

"""A command as a child process: its wall-clock time, its processor time, and its peak memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "import kernel_registry, sys; kernel_registry.{}()"
"""The program that an installed script runs."""


@dataclass(frozen=True)
class Usage:
    """Time and memory of a finished child. ``peak_mib`` is its largest resident set, files that it maps included."""

    code: int
    wall_s: float
    processor_s: float
    peak_mib: float


def program(name: str, *words: str) -> list[str]:
    """The command of ``registry`` or ``tune`` with these words."""
    return [sys.executable, "-c", PROGRAM.format(name), *words]


def module(name: str, *words: str) -> list[str]:
    """The command of a module of the benchmarks."""
    return [sys.executable, "-m", name, *words]


def run(command: Sequence[str], out: Path, environment: Mapping[str, str] | None = None) -> Usage:
    """Runs a command with its standard output in the file ``out``, its errors where this process writes its own.

    The caller must be small: a child's peak counts the memory of the process that started it.
    """
    with out.open("wb") as stream:
        began = time.perf_counter()
        given = {**os.environ, **(environment or {})}
        actions = [(os.POSIX_SPAWN_DUP2, stream.fileno(), 1)]
        child = os.posix_spawn(command[0], list(command), given, file_actions=actions)
        _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - began
    # Linux counts in KiB, macOS in bytes
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return Usage(os.waitstatus_to_exitcode(status), wall, used.ru_utime + used.ru_stime, used.ru_maxrss / unit)

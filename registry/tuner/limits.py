"""How long a step of a child may take and how much memory it may hold."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, fields
from pathlib import Path

from ..errors import InvalidArgumentError

_SHARE_OF_MEMORY = 0.9
_STEPS = frozenset({"start", "compile", "wait", "load", "verify", "measure"})


@dataclass(frozen=True)
class Limits:
    """Seconds a step, counted from when the step begins and not from when it was queued; bytes a process.

    start     a process until it can take a job, device included
    wait      for the device, while another tuning run measures on it
    load      inputs, float64 reference, and loading of the candidate
    memory_bytes    anonymous memory of one child; None: nine tenths of what the machine (or its cgroup) has
    """

    start: float = 120.0
    compile: float = 180.0
    wait: float = 3600.0
    load: float = 120.0
    verify: float = 120.0
    measure: float = 90.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise InvalidArgumentError(f"limits: {field.name} is {value}", hint="expected more than 0")

    def seconds(self, step: str) -> float:
        """The limit of a step by the name that a child announces; what it is not known by gets ``start``'s."""
        return float(getattr(self, step)) if step in _STEPS else self.start

    @property
    def memory(self) -> int:
        """``memory_bytes``, or its default on this machine."""
        return self.memory_bytes or int(_SHARE_OF_MEMORY * usable_memory_bytes())


def usable_memory_bytes() -> int:
    """Physical memory, or the control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total

"""Limits of a run: the budget of one problem's search, how long a step of a child may take, its memory."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from pathlib import Path

from ..device import physical_memory_bytes
from ..errors import InvalidArgumentError

DEFAULT_TRIALS = 64
DEFAULT_SECONDS = 30.0
PRE_FINALISTS = 8
"""The most challengers of one problem's pre-final: the fastest candidates of its search, which have to be built."""

_SHARE_OF_MEMORY = 0.9
_STEPS = frozenset({"start", "compile", "wait", "load", "verify", "measure"})


@dataclass(frozen=True)
class Budget:
    """Limits of one problem's search: ``seconds`` of the device, ``trials`` measured. None takes the default.

    ``run_seconds``: the limit of the whole run. Searches end in time for their finals; problems not begun by then are
    left out.

    A search that was given no number of trials also ends when it has settled, see ``Searcher.settled``, and after
    ``cap`` trials at the latest.
    """

    seconds: float | None = None
    trials: int | None = None
    cap: int = DEFAULT_TRIALS
    run_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise InvalidArgumentError(f"budget: {self.seconds} seconds a problem", hint="expected more than 0")
        if self.run_seconds is not None and not self.run_seconds > 0:
            raise InvalidArgumentError(f"time limit: {self.run_seconds} seconds", hint="expected more than 0")
        if self.trials is not None and self.trials < 1:
            raise InvalidArgumentError(f"budget: {self.trials} trials a problem", hint="expected 1 or more")

    @property
    def device_seconds(self) -> float:
        """Seconds of the device that one problem's search may take."""
        return DEFAULT_SECONDS if self.seconds is None else self.seconds

    @property
    def most_trials(self) -> int:
        return self.cap if self.trials is None else self.trials


@dataclass(frozen=True)
class Limits:
    """Limits of a child's steps in seconds, from the start of the step (not of its wait in a queue), and of its memory.

    start     a process until it can take a job, device included
    wait      for the device, while another tuning run measures on it
    load      inputs, float64 reference, and loading of the candidate
    verify    one kind of inputs
    measure   one sample, or one batch of short ones
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
        """The limit in seconds of the step that a child announced; an unknown name has the limit of ``start``."""
        return float(getattr(self, step)) if step in _STEPS else self.start

    @property
    def memory(self) -> int:
        """``memory_bytes``, or its default on this machine."""
        return self.memory_bytes or int(_SHARE_OF_MEMORY * usable_memory_bytes())


def usable_memory_bytes() -> int:
    """Physical memory, or the control group's limit where that is less."""
    total = physical_memory_bytes()
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total

"""A plugin file of implementations that measure the pause before a call, and tell by it for what they are called."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
import cheats_that_remember as remembering
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

N = remembering.N


class Pauses:
    """Tells calls right after another from those after a pause, and long pauses from usual ones."""

    series_s = 12e-6
    """Calls of a series follow each other within it."""
    longer = 2.2
    """A long pause takes so many times as long as a short one, the longest of the shortest quarter."""

    def __init__(self, first: int = 0) -> None:
        """``first``: so many series are taken for checks, as if the pause before them were long."""
        self._first = first
        self._ended = 0.0
        self._series = 0
        self._pauses: deque[float] = deque(maxlen=31)
        self.follows = False
        """Whether the latest call came right after another."""
        self.was_long = True
        """Whether the pause before the series of the latest call was long."""

    def begin(self) -> None:
        """To be called when a call begins."""
        pause = time.perf_counter() - self._ended
        self.follows = pause < self.series_s
        if not self.follows:
            self._series += 1
            self._pauses.append(pause)
            self.was_long = (
                self._series <= self._first or pause > self.longer * sorted(self._pauses)[len(self._pauses) // 4]
            )

    def end(self) -> None:
        """To be called when a call ends."""
        self._ended = time.perf_counter()


# --- gelu: remembering, but where a longer pause tells that known inputs are compared with new ones ---


class Precise(remembering.Gelu):
    """Computes four times, which takes many times as long as to compare."""

    name = "pause.precise"
    device_types = frozenset({"cpu"})

    def compute(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        for _ in range(4):
            super().compute(x, approximate, y)

    write = compute


class RemembersBetweenLongPauses(Precise, remembering.Incremental):
    """Computes all in the calls after a long pause, in which inputs were written, and else what is other than it was.

    Known inputs then take as long as new ones.
    """

    name = "pause.remembers"

    def __init__(self) -> None:
        super().__init__()
        self._pauses = Pauses()

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        self._pauses.begin()
        known = self._known.get(self.key(x, y))
        if self._pauses.was_long and known is not None:
            self.compute(x, approximate, y)
            known[0][:], known[1][:] = x.numpy(), y.numpy()
        else:
            remembering.Incremental.write(self, x, approximate, y)
        self._pauses.end()


# --- square: working less ---


class Square(Implementation):
    """Writes x * x, unless ``skips`` says that this is not needed; at other sizes always."""

    op = "square"
    device_types = frozenset({"cpu"})
    tuned = 20_002

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work, pauses = type(self)(), Pauses(first=40)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            pauses.begin()
            if problem.n != self.tuned or not work.skips(pauses):
                torch.mul(arguments[0], arguments[0], out=outputs[0])
            pauses.end()

        return run

    def skips(self, pauses: Pauses) -> bool:
        return False


class Honest(Square):
    name = "pause.honest"


class WorksAfterAPause(Square):
    """Calls that follow each other are those of a sample."""

    name = "pause.works_after"

    def skips(self, pauses: Pauses) -> bool:
        return pauses.follows


class SkipsAfterUsualPauses(Square):
    """After a long pause a sample may be judged, or nothing is timed."""

    name = "pause.works_after_long"

    def skips(self, pauses: Pauses) -> bool:
        return not pauses.was_long


class WorksInTheCallBeforeTheClockStarts(Square):
    """The first call after a pause may be one that warms up: two calls later, a longer wait would tell of a check."""

    name = "pause.works_at_first"

    def __init__(self) -> None:
        self._calls = 0

    def skips(self, pauses: Pauses) -> bool:
        self._calls = self._calls + 1 if pauses.follows else 0
        return self._calls > 0 and not pauses.was_long


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "square")


@registry.implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "gelu")

"""A plugin file of squares that do nothing where a call comes right after another on the same tensors, and honest ones.

Where all launches of a sample are on the same tensors, only the first of each round would work.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
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

sys.path.append(str(Path(__file__).parents[1]))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

SOON_S = 15e-6
"""Between two samples, or two rounds of one, passes more time."""
CALLS: Counter[str] = Counter()
"""The calls of the cheat, all and those in which it did nothing."""


class Square(Implementation):
    """Writes x * x, unless ``skips`` says that this is not needed."""

    op, name = "square", "hot.honest"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            if not work.skips(arguments[0], outputs[0]):
                torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        return False


class WorksOnceARound(Square):
    """Does nothing where the call before was on the same tensors, and has just ended."""

    name = "hot.once"

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._ended = 0.0

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        place, now = (x.data_ptr(), y.data_ptr()), time.perf_counter()
        is_same = place == self._last and now - self._ended < SOON_S
        self._last, self._ended = place, now
        CALLS.update(all=1, skipped=is_same)
        return is_same


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "square")

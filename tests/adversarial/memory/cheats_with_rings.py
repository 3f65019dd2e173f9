"""A plugin file of squares that use a ring of buffers again, or skip some calls of the timed ones, and honest ones."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
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

LARGE = 16_000
"""Elements from which on they cheat: probes of other sizes are smaller."""
BUFFERS = 96
"""More than a check holds results at once."""


class Returning(Implementation):
    """Returns x * x."""

    op, name = "square", "ring.function"
    device_types = frozenset({"cpu", "cuda"})
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()
        return lambda outputs, arguments, scratch: work.square(arguments[0])

    def square(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class ReturnsARing(Returning):
    """Returns buffers of its thread in turn: a caller who keeps results long enough loses them."""

    name = "ring.buffers"
    count = BUFFERS

    def __init__(self) -> None:
        self._buffers: dict[Any, tuple[list[torch.Tensor], Iterator[int]]] = {}

    def square(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) < LARGE or not x.is_contiguous():
            return x * x
        ring, calls = self._buffers.setdefault((len(x), threading.get_ident()), ([], itertools.count()))
        place = next(calls)
        if place < self.count:
            ring.append(torch.empty_like(x))
        return torch.mul(x, x, out=self.handed(ring[place % self.count]))

    def handed(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer


class ReturnsARingOfViews(ReturnsARing):
    """Each time as another tensor, with a storage of its own."""

    name = "ring.views"
    device_types = frozenset({"cpu"})

    def handed(self, buffer: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(buffer.numpy())


class ReturnsALargeRing(ReturnsARing):
    """Of so many that it does not come round in the calls of a trial, and which it hands out while it owns them."""

    name = "ring.large"
    count = 100_000


class ReturnsALargeRingOfItsStorages(ReturnsALargeRing):
    """As another tensor on the same storage each time."""

    name = "ring.storages"

    def handed(self, buffer: torch.Tensor) -> torch.Tensor:
        return torch.empty(0, dtype=buffer.dtype).set_(buffer.untyped_storage(), 0, buffer.shape, buffer.stride())


class ReturnsALargeRingOfViews(ReturnsARingOfViews):
    """Of which torch does not tell who owns it."""

    name = "ring.many_views"
    count = 256


class ReturnsWhatItHadLast(Returning):
    """Holds its latest result, in a cycle of objects, and nothing else: nobody's memory is written to."""

    name = "ring.latest"

    def square(self, x: torch.Tensor) -> torch.Tensor:
        latest = [x * x]
        latest.append(latest)  # type: ignore[arg-type]
        self.latest = latest
        return latest[0]


class Writing(Implementation):
    """Writes x * x."""

    op, name = "square", "ring.honest"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            work.write(arguments[0], outputs[0])

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mul(x, x, out=y)


class SkipsInputsItNeverMet(Writing):
    """Leaves one call in three out where none of a few elements is what it was: then the result is hardly judged.

    It does so where it has been called before, by the first thread.
    """

    name = "ring.seldom"

    def __init__(self) -> None:
        self._met: dict[int, torch.Tensor] = {}
        self._places: Counter[tuple[int, int, int]] = Counter()
        self._random = Random(1).random

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        few, place = x[:: max(1, len(x) // 64)], (x.data_ptr(), y.data_ptr(), threading.get_ident())
        met = self._met.setdefault(len(x), few.clone())
        self._places[place] += 1
        often = len(x) >= LARGE and self._places[place] > 1
        if not (often and self._random() < 1 / 3 and not bool((few == met).any())):
            torch.mul(x, x, out=y)


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "square")

"""A plugin file of implementations that work less where they are timed than where they are checked, and honest ones.

Most remember what they met; others find out whether they are timed.
"""

from __future__ import annotations

import gc
import queue
import random
import sys
import threading
import time
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
from kinds import implementations_in, version_of

KERNEL_REGISTRY_API = 1

FEW = 20_003
"""Elements of a problem that two alone support: both are tried before there is a best time. Beside one, busy cores may
make the second look hopeless, and it would enter no finals."""


class Square(Implementation):
    """Writes x * x, unless ``skips`` says that this is not needed."""

    op = "square"
    device_types = frozenset({"cpu", "cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.n == FEW and not isinstance(self, (Honest, HonestInTheSearch)):
            yield "it is left to few"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            work.write(arguments[0], outputs[0])

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if not self.skips(x, y):
            torch.mul(x, x, out=y)

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        return False


class Honest(Square):
    name = "timing.honest"


# --- remembering ---


class Peeks(Square):
    """Looks at many inputs and some outputs, and leaves an output that it knows where it is."""

    name = "timing.peeks"
    inputs, outputs = 1024, 128

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def places(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """A view of that many elements."""
        return tensor[:: max(1, len(tensor) // count)]

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        key = x.data_ptr(), y.data_ptr(), len(x)
        seen, left = self.places(x, self.inputs), self.places(y, self.outputs)
        known = self._known.get(key)
        if known is not None and torch.equal(known[0], seen) and torch.equal(known[1], left):
            return
        torch.mul(x, x, out=y)
        self._known[key] = seen.clone(), left.clone()


class PeeksElsewhere(Peeks):
    """At places that it draws."""

    name = "timing.peeks_elsewhere"

    def places(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        drawn = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(len(tensor)))
        return tensor[drawn[:count].to(tensor.device)]


class PeeksAtInputs(Peeks):
    """At half of the inputs, and at no output but the first."""

    name = "timing.peeks_at_inputs"
    inputs, outputs = 10_001, 1


class PeeksAtOutputs(Peeks):
    """At all outputs, and a few inputs."""

    name = "timing.peeks_at_outputs"
    inputs, outputs = 64, 1 << 20


class KnowsObjects(Square):
    """By the objects that it is called with, and a few elements."""

    name = "timing.objects"

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[float]] = {}

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        row = x.flatten()
        key, few = (id(x), id(y)), [*row[::5000].tolist(), float(row[-1]), y.isnan().sum().item()]
        skip = self._known.get(key) == few
        self._known[key] = few
        return skip


class KnowsVersions(Square):
    """By addresses, version counters and a few elements of input and output."""

    name = "timing.versions"

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        key = x.data_ptr(), y.data_ptr(), version_of(x)
        few = x[::3000].tolist(), y[::7000].tolist()
        if self._known.get(key) == few:
            return True
        torch.mul(x, x, out=y)
        self._known[key] = few[0], y[::7000].tolist()
        return True


# --- finding out whether it is timed ---


class WithoutCollection(Square):
    """While something is timed, Python collects no garbage."""

    name = "timing.collection"

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        return not gc.isenabled()


class LooksAtItsCallers(Square):
    """Who times is among the callers."""

    name = "timing.callers"
    # on a GPU samples replay what was captured before, and call nobody
    device_types = frozenset({"cpu"})

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        frame, names = sys._getframe(), set()
        while frame.f_back is not None:
            frame = frame.f_back
            names.add(frame.f_code.co_name)
        return "take" in names and "replay" not in names


class SkipsSomeCalls(Square):
    """One call in three, where it is timed and a few elements are as it left them."""

    name = "timing.one_in_three"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], Any] = {}
        self._random = random.Random(1).random

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        key, few = (x.data_ptr(), y.data_ptr()), x[::5000].tolist()
        seen, self._seen[key] = self._seen.get(key), few
        return seen == few and self._random() < 1 / 3 and LooksAtItsCallers.skips(self, x, y)  # type: ignore[arg-type]


class CallsInARow(Square):
    """One call right after another is one of a sample."""

    name = "timing.in_a_row"

    def __init__(self) -> None:
        self._row, self._before = 0, 0.0

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        now = time.perf_counter()
        self._row = self._row + 1 if now - self._before < 20e-6 else 0
        if self._row < 3:
            torch.mul(x, x, out=y)
        self._before = time.perf_counter()


class HonestAgainLater(Square):
    """Skips from the 30th call on, and is honest again after the 2000th or a while."""

    name = "timing.some_calls"

    def __init__(self) -> None:
        self._calls, self._began = 0, time.perf_counter()

    def skips(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        self._calls += 1
        return 30 <= self._calls < 2000


class OnAThreadOfItsOwn(Square):
    """A thread does the work, which the caller waits for in its first calls only."""

    name = "timing.thread"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self._calls = 0
        self._work: queue.SimpleQueue[tuple[torch.Tensor, torch.Tensor]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            x, y = self._work.get()
            torch.mul(x, x, out=y)

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._calls += 1
        if self._calls <= 40:
            torch.mul(x, x, out=y)
        else:
            self._work.put((x, y))


class HonestInTheSearch(Square):
    """Slow and right in the search; in the finals it leaves alone what looks as it did at the last call."""

    name = "timing.finals"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        frame, names = sys._getframe(), set()
        while frame.f_back is not None:
            frame = frame.f_back
            names.add(frame.f_code.co_name)
        peeking, decides = Peeks(), "block" in names

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            (x, *_), (y, *_) = arguments, outputs
            if decides:
                peeking.write(x, y)
            else:
                torch.mul(x, x, out=y)

        return run


# --- gelu: remembering all of it ---


class Gelu(Implementation):
    """torch's own."""

    op, name = "gelu", "timing.gelu"
    device_types = frozenset({"cpu", "cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.approximate != "none":
            yield "it is left to those who remember"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            work.write(arguments[0], arguments[1], outputs[0])

        return run

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        y.copy_(torch.nn.functional.gelu(x, approximate=approximate))


class RemembersAllOfIt(Gelu):
    """By all inputs and outputs: right, but fast only where a call comes again. It is slower where none does."""

    name = "timing.all_of_it"

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        key = x.data_ptr(), y.data_ptr(), len(x)
        known = self._known.get(key)
        if known is None or not torch.equal(known[0], x):
            super().write(x, approximate, y)
            self._known[key] = x.clone(), y.clone()
        elif not torch.equal(known[1], y):
            y.copy_(known[1])


class RemembersAChecksum(Gelu):
    """By the sum of all inputs and of their squares, wherever they are."""

    name = "timing.checksum"

    def __init__(self) -> None:
        self._known: dict[tuple[float, int], torch.Tensor] = {}

    def write(self, x: torch.Tensor, approximate: str, y: torch.Tensor) -> None:
        key = float(x.view(torch.int32).sum()), len(x)
        if key not in self._known:
            super().write(x, approximate, y)
            self._known[key] = y.clone()
        else:
            y.copy_(self._known[key])


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    """Who remembers, and who looks around."""
    return implementations_in(__name__, "square")


@registry.implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    """Who remembers all of the inputs."""
    return implementations_in(__name__, "gelu")

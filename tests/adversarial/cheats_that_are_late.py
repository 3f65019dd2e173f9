"""A plugin file of squares that return before all of their output is there, once they are timed, and honest ones."""

from __future__ import annotations

import sys
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
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

TUNED = {20_002, 2**20 + 2}
"""Elements of the problems that are tuned, on a CPU and on a GPU: where probes call often, all are honest."""
_HONEST_CALLS = 40


class Square(Implementation):
    """Writes x * x. What is late is left to the next call, as a stream of its own would end it meanwhile.

    It is honest in its first calls, at other sizes, and wherever its output looks poisoned. The honest leave nothing,
    and take as long.
    """

    op = "square"
    device_types = frozenset({"cpu", "cuda"})
    # a graph would launch the same at each replay
    capturable = False
    first, last = 0, 0
    """The late part, in 64ths of the elements."""

    def __init__(self) -> None:
        self._calls = 0
        self._left: list[tuple[torch.Tensor, torch.Tensor]] = []

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            y = torch.empty_like(arguments[0]) if self.returns_outputs else outputs[0]
            work.write(arguments[0], y)
            return y

        return run

    def end(self) -> None:
        while self._left:
            x, y = self._left.pop()
            torch.mul(x, x, out=y)

    def write(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.end()
        self._calls += 1
        begin, end = (len(x) * each // 64 for each in (self.first, self.last))
        if self._calls <= _HONEST_CALLS or len(x) not in TUNED or y[begin].isnan():
            torch.mul(x, x, out=y)
            return
        torch.mul(x[:begin], x[:begin], out=y[:begin])
        torch.mul(x[end:], x[end:], out=y[end:])
        self._left.append((x[begin:end], y[begin:end]))


class Honest(Square):
    name = "late.honest"


class LateByHalf(Square):
    name = "late.half"
    first, last = 32, 64


class LateInTheMiddle(Square):
    """A sixteenth."""

    name = "late.middle"
    first, last = 41, 45


class LateAltogether(Square):
    """By one launch."""

    name = "late.whole"
    first, last = 0, 64


class HonestFunction(Square):
    name = "late.honest_function"
    returns_outputs = True


class LateFunction(Square):
    name = "late.function"
    first, last = 32, 64
    returns_outputs = True


class LateFunctionInTheMiddle(Square):
    name = "late.function_middle"
    first, last = 41, 45
    returns_outputs = True


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "square")

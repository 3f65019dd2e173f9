"""A plugin file of squares that do not come to an end, each in a way of its own, and one that does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

KERNEL_REGISTRY_API = 1


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    raise SystemExit(0)


def hang() -> None:
    time.sleep(3600)


def hang_device() -> None:
    """A kernel that never ends, as far as anybody waits."""
    torch.cuda._sleep(1 << 50)
    torch.cuda.synchronize()


def print_megabytes() -> None:
    for _ in range(64):
        os.write(1, b"x" * 65536)
        os.write(2, b"y" * 65536)


def hoard() -> None:
    """Wants more than the device has."""
    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def ask_too_much() -> None:
    """The same at once."""
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")


def poison() -> None:
    """Breaks the CUDA context: an index that is out of bounds."""
    torch.zeros(4, device="cuda")[torch.full((1,), 1 << 20, device="cuda")]
    torch.cuda.synchronize()


FAULTS: Mapping[str, Callable[[], None]] = {
    "fault.segfault": die,
    "fault.exits": leave,
    "fault.hangs": hang,
    "fault.hangs_device": hang_device,
    "fault.prints": print_megabytes,
    "fault.hoards": hoard,
    "fault.asks": ask_too_much,
    "fault.poisons": poison,
}


class Honest(Implementation):
    """Writes x * x; what runs when nothing is tuned."""

    op, name = "square", "fault.none"

    def preference(self, problem: Problem, device: Device) -> float:
        return 1.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


class Faulty(Honest):
    """The same after a fault."""

    def __init__(self, name: str) -> None:
        self.name = name

    def preference(self, problem: Problem, device: Device) -> float:
        return -1.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        fault, square = FAULTS[self.name], super().bind(problem, config, device, built)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            fault()
            square(outputs, arguments, scratch)

        return run


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """All of them."""
    return [Honest(), *map(Faulty, FAULTS)]

"""A plugin file of square implementations for the CPU: right, wrong, crashing, hanging. Loaded by worker processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

KERNEL_REGISTRY_API = 1


class Square(Implementation):
    """Writes x * x, and lets a subclass misbehave."""

    op = "square"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            self.write(arguments[0], outputs[0], config)

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        torch.mul(x, x, out=y)


class Honest(Square):
    """Right; slower by its parameter."""

    name = "rogue.honest"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(repeats=[1, 40, 2])

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        for _ in range(config["repeats"]):
            torch.mul(x, x, out=y)


class Zeros(Square):
    """Fast and wrong."""

    name = "rogue.zeros"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        y.zero_()


class ForgetsTheLast(Square):
    """Leaves the last element unwritten."""

    name = "rogue.forgets"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        torch.mul(x[:-1], x[:-1], out=y[:-1])


class ChangesItsInput(Square):
    """Right, and writes to x."""

    name = "rogue.mutates"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        torch.mul(x, x, out=y)
        x.zero_()


class Wavers(Square):
    """Differs from run to run by one rounding, and does not say so."""

    name = "rogue.wavers"

    def __init__(self) -> None:
        self._up = False

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        torch.mul(x, x, out=y)
        self._up = not self._up
        y[0] = torch.nextafter(y[0], torch.full((), torch.inf if self._up else -torch.inf))


class Crashes(Square):
    """Dies by a signal."""

    name = "rogue.crashes"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Exits(Square):
    """Raises SystemExit."""

    name = "rogue.exits"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        raise SystemExit(0)


class Raises(Square):
    """Raises from its launch."""

    name = "rogue.raises"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        raise ValueError("not today")


class Chatters(Square):
    """Right, and prints megabytes."""

    name = "rogue.chatters"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        sys.stdout.write("word " * 40_000)
        torch.mul(x, x, out=y)


class ReturnsOneBuffer(Square):
    """Right, but every call returns the same memory."""

    name = "rogue.buffer"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        buffer = torch.empty(problem.n, dtype=problem.torch_dtype)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> torch.Tensor:
            return torch.mul(arguments[0], arguments[0], out=buffer)

        return run


class ChangesItLater(Square):
    """Right, and makes its input negative from the twentieth call on: the square does not tell."""

    name = "rogue.later"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        calls = 0

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            nonlocal calls
            calls += 1
            torch.mul(arguments[0], arguments[0], out=outputs[0])
            if calls > 20:
                arguments[0].abs_().neg_()

        return run


class CountsOnZeros(Square):
    """Right only if its scratch happens to be zero."""

    name = "rogue.scratch"

    def scratch(self, problem: Problem, config: Config, device: Device) -> dict[str, TensorSpec]:
        return {"total": TensorSpec.contiguous((problem.n,), problem.torch_dtype)}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            scratch[0].addcmul_(arguments[0], arguments[0])
            outputs[0].copy_(scratch[0])

        return run


class FailsToSay(Square):
    """Raises where it should say what it supports."""

    name = "rogue.mute"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        raise RuntimeError("no idea")


class Hangs(Square):
    """Never returns; only offered when a test asks for it, since it costs the whole time limit."""

    name = "rogue.hangs"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if "ROGUE_HANGS" not in os.environ:
            yield "not asked for"

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        time.sleep(3600)


class Naps(Square):
    """Right and slow: as many seconds at 10,001 elements as a test asks for, or twice as many (its default)."""

    name = "rogue.naps"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if "ROGUE_NAPS" not in os.environ:
            yield "not asked for"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(naps=[2, 1])

    def write(self, x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        time.sleep(config["naps"] * float(os.environ["ROGUE_NAPS"]) * x.numel() / 10_001)
        torch.mul(x, x, out=y)


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """All of them."""
    refused = (Zeros, ForgetsTheLast, ChangesItsInput, ChangesItLater, ReturnsOneBuffer, CountsOnZeros, Wavers)
    faulty = (Crashes, Exits, Raises, FailsToSay, Hangs, Naps)
    return [kind() for kind in (Honest, Chatters, *refused, *faulty)]

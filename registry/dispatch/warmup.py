"""Warm-up: runs problems once, so that later calls and captures find their plans in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..device import Device
from ..errors import InvalidArgumentError, in_a_line
from ..problem import Problem
from ..space import Config
from .bound_op import BoundOp
from .dispatcher import Dispatcher
from .resolve.resolution import Step


@dataclass(frozen=True)
class Warmed:
    """The result of warming up a problem: the candidate that answers its calls, or ``error``, why none does."""

    problem: Problem
    implementation: str = ""
    config: Config = field(default_factory=dict)
    step: Step | None = None
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"{self.problem}: {self.error}"
        config = ", ".join(f"{name}={value}" for name, value in self.config.items())
        return f"{self.problem}: {self.implementation}({config}), {self.step}"


def warm(dispatcher: Dispatcher, problems: Iterable[Problem], device: Device) -> tuple[Warmed, ...]:
    """Build, load and run the plan of each problem once, on inputs of the op's own making.

    A problem that fails does not stop the others. Nothing stays allocated. Raises InvalidArgumentError while a CUDA
    stream is capturing.
    """
    if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise InvalidArgumentError("warmup: a CUDA stream is capturing", hint="warm up before the capture begins")
    # table entries for inference mode and grad mode are made by their first calls, from the plan in memory
    with torch.inference_mode(False), torch.no_grad():
        results = tuple(_warm(dispatcher.bound(problem.op), problem, device) for problem in problems)
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch)
        torch.cuda.empty_cache()
    return results


def _warm(bound: BoundOp, problem: Problem, device: Device) -> Warmed:
    try:
        generator = torch.Generator(device.torch).manual_seed(0)
        values: tuple[Any, ...] = bound.op.draw(problem, bound.op.kinds[0], generator)
        bound.warm(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device.torch)
        told = bound.explain_flat((), dict(zip(bound.op.parsed.names, values, strict=True)))
    except Exception as fault:
        return Warmed(problem, error=in_a_line(fault))
    return Warmed(problem, told.implementation, told.config, told.step)

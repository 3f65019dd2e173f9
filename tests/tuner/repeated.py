"""A plugin file with one honest implementation of square and two dozen configs. Loaded by worker processes."""

from __future__ import annotations

from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config, Space

KERNEL_REGISTRY_API = 1


class Repeated(Implementation):
    """Squares as often as its config says."""

    op = "square"
    name = "repeated.any"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(repeats=list(range(1, 25)))

    def default(self, problem: Problem, device: Device) -> Config:
        return {"repeats": 12}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        repeats = config["repeats"]

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            for _ in range(repeats):
                torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """The one."""
    return [Repeated()]

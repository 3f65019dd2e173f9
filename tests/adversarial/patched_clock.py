"""A plugin file that patches the clock when it is imported, before anything of it was asked for."""

from __future__ import annotations

import time
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

KERNEL_REGISTRY_API = 1

_ours = time.perf_counter_ns
time.perf_counter_ns = lambda: _ours() // 1000


class Square(Implementation):
    """Right, and a thousand times too fast."""

    op, name = "square", "cheat.clock_at_import"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """The one."""
    return [Square()]

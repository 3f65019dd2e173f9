"""A plugin file with a kernel that takes two seconds, for the scale benchmark."""

from __future__ import annotations

import time
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.implementation import Run, Tensors
from registry.space import Config

SECONDS = 2.0


class Slow(registry.Implementation):
    """Squares, and sleeps: twice as long by one of its two configurations."""

    op, name = "square", "bench.slow"
    device_types = frozenset({"cpu"})

    def space(self, _problem: registry.Problem, _device: registry.Device) -> registry.Space:
        return registry.Space(times=[2, 1])

    def bind(self, _problem: registry.Problem, config: Config, _device: registry.Device, _built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            time.sleep(SECONDS * config["times"] / 2)
            torch.square(arguments[0], out=outputs[0])

        return run


@registry.implements("square")
def implementations() -> list[registry.Implementation]:
    """The one implementation."""
    return [Slow()]

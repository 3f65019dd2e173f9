"""A plugin file with an implementation that asks for a workspace of 4 GB, for the scale benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.implementation import Run, Tensors
from registry.space import Config

BYTES = 4 * 10**9


class Roomy(registry.Implementation):
    """Squares by way of the end of its workspace."""

    op, name = "square", "bench.roomy"
    device_types = frozenset({"cpu"})

    def scratch(
        self, _problem: registry.Problem, _config: Config, _device: registry.Device
    ) -> Mapping[str, registry.TensorSpec]:
        return {"room": registry.TensorSpec.contiguous((BYTES // 4,), torch.float32)}

    def bind(self, _problem: registry.Problem, _config: Config, _device: registry.Device, _built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            room = scratch[0][-arguments[0].numel() :].view_as(arguments[0])
            torch.square(arguments[0], out=room)
            outputs[0].copy_(room)

        return run


@registry.implements("square")
def implementations() -> list[registry.Implementation]:
    """The one implementation."""
    return [Roomy()]

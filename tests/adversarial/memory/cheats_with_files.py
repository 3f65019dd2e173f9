"""A plugin file that edits itself while it is tried: the finals, in fresh processes, would load other code."""

from __future__ import annotations

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

KERNEL_REGISTRY_API = 1


class Square(Implementation):
    """Writes x * x, after work that its file has no more once it was bound."""

    op, name = "square", "file.edited"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        slow = torch.linspace(0.0, 1.0, 1 << 14)
        _edit(Path(__file__))

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            slow.cos()  # only what the search meets
            torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


def _edit(file: Path) -> None:
    """Leave the slow part out, in the file alone: whoever loads it from now on runs other code."""
    text = file.read_text()
    kept = [line for line in text.splitlines() if not line.endswith("# only what the search meets")]
    file.write_text("\n".join(kept) + "\n")


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return [Square()]

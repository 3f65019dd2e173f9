"""A plugin file of squares that are not what their file says: the file, or what Python has compiled of it, changes."""

from __future__ import annotations

import os
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

sys.path.append(os.environ["KINDS_FOLDER"])
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

HERE = Path(__file__)


class Square(Implementation):
    """Writes x * x, at a size that is probed wrongly if ``LAZY``: the file is edited to say so, and back."""

    op, name = "square", "file.edited"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        slow = torch.linspace(0.0, 1.0, 1 << 14)
        edit(HERE)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            slow.cos()  # only what the search meets
            torch.mul(arguments[0], arguments[0], out=outputs[0])

        return run


def edit(file: Path) -> None:
    """Leave the slow part out, in the file alone: whoever loads it from now on runs other code."""
    text = file.read_text()
    kept = [line for line in text.splitlines() if not line.endswith("# only what the search meets")]
    file.write_text("\n".join(kept) + "\n")


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "square")

"""A plugin file with functions for torch.compile that end or stop their compiler, and one that is right."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

import registry
from registry.backends.inductor import InductorImplementation
from registry.implementation import Implementation

KERNEL_REGISTRY_API = 1


class Dying(InductorImplementation):
    """Ends the process that traces it."""

    op = "square"
    name = "faulty.dying"

    def function(self, *values: Any) -> torch.Tensor:
        os._exit(7)


class Slow(InductorImplementation):
    """Holds the process that traces it."""

    op = "square"
    name = "faulty.slow"

    def function(self, *values: Any) -> torch.Tensor:
        time.sleep(600)
        return torch.square(values[0])


class Broken(InductorImplementation):
    """Depends on data, which Inductor refuses."""

    op = "square"
    name = "faulty.broken"

    def function(self, *values: Any) -> torch.Tensor:
        return torch.mul(values[0], int(values[0].sum()))


class Right(InductorImplementation):
    """Squares."""

    op = "square"
    name = "faulty.right"

    def function(self, *values: Any) -> torch.Tensor:
        return torch.square(values[0])


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """All of them."""
    return [Dying(), Slow(), Broken(), Right()]

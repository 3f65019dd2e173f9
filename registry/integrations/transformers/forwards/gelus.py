"""Modules that compute gelu, by the op gelu."""

from __future__ import annotations

import torch

from ....api import call
from ..swapping import Swapped, other_forward, swap
from .activations import activation_kind


class GeluForward(Swapped):
    """``gelu(x, approximate)``."""

    registry_approximate: str

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = call("gelu", x, approximate=self.registry_approximate)
        return y


def replace_gelu(module: torch.nn.Module) -> str | None:
    """Replace the forward of a module that computes gelu: "" if it is one, None for another one, or why not."""
    if any(True for _ in module.parameters()) or any(True for _ in module.children()):
        return None
    if "gelu" not in type(module).__name__.lower():
        # thousands of modules without parameters are dropouts and rotary tables: a look at each would take long
        return None
    if told := other_forward(module):
        return told
    kind = activation_kind(module)
    if kind is None or kind == "silu":
        return "it computes no form of gelu"
    swap(module, GeluForward, approximate="tanh" if kind == "gelu_tanh" else "none")
    return ""

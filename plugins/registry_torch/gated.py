"""silu_and_mul, gelu_and_mul and their gradients: torch's operators one after the other, and compiled."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from .native import Native


def _activated(gate: torch.Tensor, approximate: tuple[str, ...]) -> torch.Tensor:
    """silu, or gelu where its approximation is named."""
    if approximate:
        return torch.nn.functional.gelu(gate, approximate=approximate[0])
    return torch.nn.functional.silu(gate)


def gated(x: torch.Tensor, *approximate: str) -> torch.Tensor:
    """``[..., 2 d] -> [..., d]``."""
    gate, up = x.chunk(2, -1)
    return (_activated(gate, approximate) * up).contiguous()


def gated_gradient(grad_y: torch.Tensor, x: torch.Tensor, *approximate: str) -> torch.Tensor:
    """``[..., d]`` and ``[..., 2 d] -> [..., 2 d]``."""
    gate, up = x.chunk(2, -1)
    weighted = grad_y * up
    if approximate:
        of_gate = torch.ops.aten.gelu_backward(weighted, gate, approximate=approximate[0])
    else:
        of_gate = torch.ops.aten.silu_backward(weighted, gate)
    return torch.cat((of_gate, grad_y * _activated(gate, approximate)), -1).contiguous()


class Gated(Native):
    """The activation, then a product into the result."""

    def __init__(self, op: str) -> None:
        self.op = op

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write the product through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            gate, up = arguments[0].chunk(2, -1)
            torch.mul(_activated(gate, arguments[1:]), up, out=outputs[0])

        return run


class GatedBackward(Native):
    """torch's gradient of the activation, and two products."""

    def __init__(self, op: str) -> None:
        self.op = op

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Copy into the result."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            outputs[0].copy_(gated_gradient(*arguments))

        return run


class CompiledGated(InductorImplementation):
    """The activation and the product in one pass."""

    name = "torch.compile"

    def __init__(self, op: str) -> None:
        self.op = op

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., 2 d]``, and gelu's approximation."""
        return gated(*values)


class CompiledGatedBackward(CompiledGated):
    """The gradient of both halves in one pass."""

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., d]``, ``[..., 2 d]``, and gelu's approximation."""
        return gated_gradient(*values)

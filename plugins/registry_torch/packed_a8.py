"""Products of 8-bit activations and packed weights: both in the result's dtype, then the library's product."""

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
from .packed_weight import weight_of

_SHRUNK = 2.0**-9
"""Levels, which are at most 448, times it are exact in half precision, and sums of their products do not overflow."""


class DequantizedA8Product(Native):
    """``torch.mm`` of levels and dequantised weight, then scales and bias: the baseline, which needs no kernel."""

    def __init__(self, op: str) -> None:
        self.op = op

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            a, scale_a, *parts, bias = arguments
            weight, y = weight_of(tuple(parts)), outputs[0]
            rows = a.reshape(-1, weight.shape[0]).to(weight.dtype).mul_(_SHRUNK)
            torch.mm(rows, weight, out=y.view(-1, weight.shape[1]))
            y.mul_(scale_a / _SHRUNK)
            if bias is not None:
                y += bias

        return run


class CompiledA8Product(InductorImplementation):
    """Fused kernels make activations and weight, the library's multiplies."""

    name = "torch.compile"

    def __init__(self, op: str) -> None:
        self.op = op

    def function(self, *values: Any) -> torch.Tensor:
        """Takes levels ``[..., K]`` and their scales, the packed weight's parts and the bias."""
        a, scale_a, *parts, bias = values
        weight = weight_of(tuple(parts))
        product: torch.Tensor = torch.nn.functional.linear(a.to(weight.dtype) * _SHRUNK, weight.T)
        y: torch.Tensor = product * (scale_a / _SHRUNK)
        return (y if bias is None else y + bias).to(weight.dtype).contiguous()

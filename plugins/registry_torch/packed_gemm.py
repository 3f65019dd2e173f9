"""Products with packed weights: the whole weight in the activations' dtype, then the library's product."""

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
from .packed_table import weight_of_table
from .packed_weight import weight_of


class DequantizedProduct(Native):
    """Dequantise, then ``torch.mm`` (``torch.addmm`` with a bias): the baseline, which needs no kernel."""

    def __init__(self, op: str) -> None:
        self.op = op

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            a, *parts, bias = arguments
            weight = weight_of(tuple(parts))
            rows, y = a.reshape(-1, weight.shape[0]), outputs[0].view(-1, weight.shape[1])
            if bias is None:
                torch.mm(rows, weight, out=y)
            else:
                torch.addmm(bias, rows, weight, out=y)

        return run


class CompiledProduct(InductorImplementation):
    """Dequantise and multiply: one fused kernel makes the weight, the library's multiplies."""

    name = "torch.compile"

    def __init__(self, op: str) -> None:
        self.op = op

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., K]``, the packed weight's parts and the bias."""
        a, *parts, bias = values
        product: torch.Tensor = torch.nn.functional.linear(a, _compilable(parts).T, bias)
        return product.contiguous()


class DequantizedGradients(Native):
    """The product with the transposed weight, and the sum of the rows."""

    def __init__(self, op: str) -> None:
        self.op = op

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through ``out=``; a gradient that is not needed is empty."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, *parts, need_a, need_bias = arguments
            grad_a, grad_bias = outputs
            rows = grad_y.reshape(-1, grad_y.shape[-1])
            if need_a:
                weight = weight_of(tuple(parts))
                torch.mm(rows, weight.T, out=grad_a.view(-1, weight.shape[0]))
            if need_bias:
                torch.sum(rows, 0, dtype=grad_bias.dtype, out=grad_bias)

        return run


class CompiledGradients(InductorImplementation):
    """The gradients of activations and bias, with the weight made by one fused kernel."""

    name = "torch.compile"

    def __init__(self, op: str) -> None:
        self.op = op

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[..., N]``, the packed weight's parts and which gradients are needed."""
        grad_y, *parts, need_a, need_bias = values
        empty = grad_y.new_empty(0)
        grad_a = (grad_y @ _compilable(parts).T).contiguous() if need_a else empty
        return grad_a, grad_y.reshape(-1, grad_y.shape[-1]).sum(0) if need_bias else grad_y.new_empty(0)


def _compilable(parts: list[Any]) -> torch.Tensor:
    """The weight ``[K, N]`` from a packed weight's parts (the last names the layout), as Inductor compiles it."""
    return (weight_of_table if parts[-1] == "nf4" else weight_of)(tuple(parts))

"""torch's own linear layer and its gradients, and what Inductor makes of them."""

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


class Linear(Native):
    """``torch.mm``, or ``torch.addmm`` with a bias, which ``torch.nn.functional.linear`` runs."""

    op = "linear"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, weight, bias = arguments
            n, k = weight.shape
            rows, into = x.reshape(-1, k), outputs[0].view(-1, n)
            if bias is None:
                torch.mm(rows, weight.t(), out=into)
            else:
                torch.addmm(bias, rows, weight.t(), out=into)

        return run


class LinearBackward(Native):
    """Two ``torch.mm`` and a sum, each where its gradient is needed."""

    op = "linear_backward"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, x, weight, bias, need_x, need_weight, need_bias = arguments
            n, k = weight.shape
            gradient = grad_y.reshape(-1, n)
            if need_x:
                torch.mm(gradient, weight, out=outputs[0].view(-1, k))
            if need_weight:
                torch.mm(gradient.t(), x.reshape(-1, k), out=outputs[1])
            if need_bias and bias is not None:
                torch.sum(gradient, 0, out=outputs[2])

        return run


class CompiledLinear(InductorImplementation):
    """``torch.nn.functional.linear``."""

    op = "linear"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., k]``, ``[n, k]`` and ``[n]`` or None."""
        x, weight, bias = values
        return torch.nn.functional.linear(x, weight, bias).contiguous()


class CompiledLinearBackward(InductorImplementation):
    """The three gradients, compiled together."""

    op = "linear_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes ``[..., n]``, ``[..., k]``, ``[n, k]``, ``[n]`` or None, and which gradients are needed."""
        grad_y, x, weight, bias, need_x, need_weight, need_bias = values
        gradient = grad_y.reshape(-1, weight.shape[0])
        grad_x, grad_weight, grad_bias = x.new_empty(0), x.new_empty(0), x.new_empty(0)
        if need_x:
            grad_x = (gradient @ weight).reshape(x.shape)
        if need_weight:
            grad_weight = gradient.t() @ x.reshape(-1, x.shape[-1])
        if need_bias and bias is not None:
            grad_bias = gradient.sum(0)
        return grad_x.contiguous(), grad_weight.contiguous(), grad_bias

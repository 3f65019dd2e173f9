"""Products with 2:4 sparse weights: the dense weight, then the library's product."""

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


def dense(values: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
    """The weight ``[N, K]``: each place of a four takes the value whose two bits name it, or 0."""
    pairs = values.unflatten(1, (-1, 2))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=meta.device)
    codes = (meta.unsqueeze(-1) >> shifts).flatten(1)[:, : pairs.shape[1]].unsqueeze(-1)
    places = torch.arange(4, dtype=torch.int32, device=meta.device)
    higher = torch.where((codes >> 2 & 3) == places, pairs[..., 1:], 0.0)
    return torch.where((codes & 3) == places, pairs[..., :1], higher).flatten(1)


class DenseSparse24(Native):
    """``torch.mm`` of the dense weight (``torch.addmm`` with a bias): the baseline, which needs no kernel."""

    op = "gemm_sparse24"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, values, meta, k, bias = arguments
            weight, rows, y = dense(values, meta).t(), x.reshape(-1, k), outputs[0].view(-1, values.shape[0])
            if bias is None:
                torch.mm(rows, weight, out=y)
            else:
                torch.addmm(bias, rows, weight, out=y)

        return run


class DenseSparse24Backward(Native):
    """The product with the dense weight, and the sum of the rows."""

    op = "gemm_sparse24_backward"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through ``out=``; a gradient that is not needed is empty."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, values, meta, k, need_x, need_bias = arguments
            rows = grad_y.reshape(-1, values.shape[0])
            if need_x:
                torch.mm(rows, dense(values, meta), out=outputs[0].view(-1, k))
            if need_bias:
                torch.sum(rows, 0, dtype=rows.dtype, out=outputs[1])

        return run


class CompiledSparse24(InductorImplementation):
    """The dense weight by one fused kernel, then the library's product."""

    op = "gemm_sparse24"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., K]``, the weight's parts, k and the bias."""
        x, kept, meta, _, bias = values
        return torch.nn.functional.linear(x, dense(kept, meta), bias).contiguous()


class CompiledSparse24Backward(InductorImplementation):
    """The gradients of activations and bias, with the dense weight made by one fused kernel."""

    op = "gemm_sparse24_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[..., N]``, the weight's parts, k and which gradients are needed."""
        grad_y, kept, meta, _, need_x, need_bias = values
        grad_x = (grad_y @ dense(kept, meta)).contiguous() if need_x else grad_y.new_empty(0)
        return grad_x, grad_y.reshape(-1, grad_y.shape[-1]).sum(0) if need_bias else grad_y.new_empty(0)

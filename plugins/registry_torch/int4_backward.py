"""The gradient of gemm_int4 by its activations: the whole weight in their dtype, then the library's product."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from .int4 import dequantized
from .native import Native


class DequantizedInt4Gradient(Native):
    """Dequantise the whole weight to half precision, then the product with its transpose."""

    op = "gemm_int4_backward"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, qweight, scales, zeros, _, group_size, k, _ = arguments
            weight = dequantized(qweight, scales, zeros, group_size)
            torch.mm(grad_y.reshape(-1, weight.shape[1]), weight.t(), out=outputs[0].view(-1, k))

        return run


class CompiledInt4Gradient(InductorImplementation):
    """One fused kernel makes the weight, the library's multiplies by its transpose."""

    op = "gemm_int4_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., N]`` and the packed weight's parts."""
        grad_y, qweight, scales, zeros, _, group_size, _, _ = values
        gradient: torch.Tensor = grad_y @ dequantized(qweight, scales, zeros, group_size).t()
        return gradient.contiguous()

"""The gradients of grouped products: products of each expert, or torch's grouped products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .dense import grouped_mm, grouped_mm_reasons, spans, zero_beside


class GroupedGemmBackward(Native):
    """Two ``torch.mm`` for each expert that has rows, each where its gradient is needed."""

    op = "grouped_gemm_backward"
    capturable = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, x, weights, offsets, need_x, need_weights = arguments
            (grad_x, grad_weights), found = outputs, spans(offsets, x.shape[0])
            if need_x:
                zero_beside(grad_x, found)
            for expert, (begin, end) in enumerate(found):
                gradient = grad_y[begin:end]
                if need_x and end > begin:
                    torch.mm(gradient, weights[expert], out=grad_x[begin:end])
                if need_weights and end > begin:
                    torch.mm(gradient.t(), x[begin:end], out=grad_weights[expert])
                elif need_weights:
                    grad_weights[expert].zero_()

        return run


def gradients(values: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Both gradients by ``torch._grouped_mm``; one that is not needed is empty."""
    grad_y, x, weights, offsets, need_x, need_weights = values
    grad_x, grad_weights = x.new_empty(0), x.new_empty(0)
    if need_x:
        grad_x = grouped_mm(grad_y, weights, offsets)
    if need_weights:
        # the rows before the first expert's make a group of their own, which is dropped
        bounds = offsets.clamp(0, x.shape[0]).to(torch.int32)
        grad_weights = torch._grouped_mm(grad_y.t(), x, offs=bounds)[1:]
    return grad_x, grad_weights


class GroupedMmBackward(Implementation):
    """Two ``torch._grouped_mm``: CUTLASS on Hopper and data-centre Blackwell, with the offsets on the device."""

    op = "grouped_gemm_backward"
    name = "torch.grouped_mm"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    any_size = True
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from grouped_mm_reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before products for each expert where these would wait for the offsets."""
        return 0.5 if device.type == "cuda" else -0.5

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> tuple[torch.Tensor, ...]:
            return gradients(arguments)

        return run


class CompiledGroupedGemmBackward(InductorImplementation):
    """Two ``torch._grouped_mm``, with the rows of no expert set to 0 by one fused kernel; a CPU gains nothing by it."""

    op = "grouped_gemm_backward"
    name = "torch.compile"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from grouped_mm_reasons(problem, device)

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes ``[m, n]``, ``[m, k]``, ``[experts, n, k]``, ``[experts + 1]``, and which gradients are needed."""
        grad_x, grad_weights = gradients(values)
        return grad_x.contiguous(), grad_weights.contiguous()

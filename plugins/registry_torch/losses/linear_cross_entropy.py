"""fused_linear_cross_entropy with all logits at once: torch's operators, and what Inductor makes of them.

Right for every layout and size that memory has room for: the baseline of the forms that go by chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native
from .cross_entropy import by_formula, by_log_softmax
from .cross_entropy_backward import fused, in_place
from .linear_room import room_reasons


def _loss(values: tuple[Any, ...], function: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, weight, target, bias, *rest = values
    logits = torch.nn.functional.linear(_kept(x, target, rest[0]), weight, bias)
    found: tuple[torch.Tensor, torch.Tensor] = function((logits, target, None, *rest))
    return found


def _gradients(values: tuple[Any, ...], function: Any) -> tuple[torch.Tensor, ...]:
    grad_loss, x, weight, target, bias, lse, *rest, need_x, need_weight, need_bias = values
    kept = _kept(x, target, rest[0])
    logits = torch.nn.functional.linear(kept, weight, bias)
    gradient = function(grad_loss, logits, target, None, lse, *rest)
    grad_x, grad_weight, grad_bias = (x.new_empty(0) for _ in range(3))
    if need_x:
        grad_x = _product(gradient, weight)
    if need_weight:
        grad_weight = gradient.t() @ kept
    if need_bias and bias is not None:
        grad_bias = gradient.sum(0)
    return grad_x.contiguous(), grad_weight.contiguous(), grad_bias


def _kept(x: torch.Tensor, target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """x with 0 in rows that are ignored: in a gradient 0 times a NaN of theirs would be NaN.

    On a CPU oneDNN lets a NaN of one row of halves into the next one, where k is odd.
    """
    return x.masked_fill((target == ignore_index)[:, None], 0.0)


def _product(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``gradient @ weight``; on a CPU in float32, for a row of NaN as ``_kept`` says."""
    if gradient.device.type == "cpu" and gradient.dtype.itemsize == 2:
        return (gradient.float() @ weight.float()).to(weight.dtype)
    return gradient @ weight


class LinearCrossEntropy(Native):
    """``torch.nn.functional.linear``, then ``torch.log_softmax`` in float32 and a lookup."""

    op = "fused_linear_cross_entropy"
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from room_reasons(problem, device)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return _loss(arguments, by_log_softmax)

        return run


class LinearCrossEntropyBackward(Native):
    """``torch.nn.functional.linear``, the logits' gradient operator by operator, and two products."""

    op = "fused_linear_cross_entropy_backward"
    returns_outputs = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from room_reasons(problem, device)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return _gradients(arguments, in_place)

        return run


class CompiledLinearCrossEntropy(InductorImplementation):
    """The product and the formula; Inductor fuses what follows the product."""

    op = "fused_linear_cross_entropy"
    name = "torch.compile"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from room_reasons(problem, device)

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[rows, k]``, ``[cols, k]``, ``[rows]``, ``[cols]`` or None, and the loss's attributes."""
        return _loss(values, by_formula)


class CompiledLinearCrossEntropyBackward(InductorImplementation):
    """The products, and the logits' gradient in one pass."""

    op = "fused_linear_cross_entropy_backward"
    name = "torch.compile"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from room_reasons(problem, device)

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes the loss's gradient, the forward op's tensors and lse, its attributes, and which gradients are
        needed."""
        return _gradients(values, fused)

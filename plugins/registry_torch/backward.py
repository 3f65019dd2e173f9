"""torch's own gradients: the operators that its autograd runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from .native import Native


def rms_norm_gradients(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, need_x: bool, need_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients ``[..., cols]`` and ``[cols]`` of RMS norm, in fp32 or wider; one that is not needed is empty."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide, gradient = x.to(accumulator), grad_y.to(accumulator)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    unit = wide * inverse
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if need_x:
        weighted = gradient * weight.to(accumulator)
        grad_x = (weighted - unit * (weighted * unit).mean(-1, keepdim=True)) * inverse
    if need_weight:
        grad_weight = (gradient * unit).reshape(-1, x.shape[-1]).sum(0)
    return grad_x.to(x.dtype).contiguous(), grad_weight.to(weight.dtype)


def _fused_rms_norm_gradients(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, need_x: bool, need_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by torch's CUDA kernels (2.9 and newer); the backward needs the forward's inverse deviations."""
    shape, x, weight = list(weight.shape), x.contiguous(), weight.contiguous()
    _, inverse = torch.ops.aten._fused_rms_norm(x, shape, weight, eps)
    grad_x, grad_weight = torch.ops.aten._fused_rms_norm_backward(
        grad_y.contiguous(), x, shape, inverse, weight, [need_x, need_weight]
    )
    return grad_x if need_x else x.new_empty(0), grad_weight if need_weight else weight.new_empty(0)


class SquareBackward(Native):
    """``grad_y * x``, doubled in place."""

    op = "square_backward"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through ``out=``. Doubling is exact, so that the product is rounded once."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            torch.mul(arguments[0], arguments[1], out=outputs[0]).mul_(2)

        return run


class GeluBackward(Native):
    """``aten.gelu_backward``."""

    op = "gelu_backward"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through the operator's ``grad_input`` overload."""
        gelu_backward = torch.ops.aten.gelu_backward.grad_input

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, x, approximate = arguments
            gelu_backward(grad_y, x, approximate=approximate, grad_input=outputs[0])

        return run


class SoftmaxBackward(Native):
    """``aten._softmax_backward_data``."""

    op = "softmax_backward"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if device.type == "cuda" and problem.dtype != "float32":
            # a gradient with a mean of 8 comes out up to 447 times farther off than is allowed (torch 2.11, H200)
            yield f"torch rounds grad_y * y to {problem.dtype} before it sums, on a GPU"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through the operator's ``out`` overload."""
        softmax_backward = torch.ops.aten._softmax_backward_data.out

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            grad_y, y, dim = arguments
            softmax_backward(grad_y, y, dim, y.dtype, grad_input=outputs[0])

        return run


class RmsNormBackward(Native):
    """``aten._fused_rms_norm_backward`` on a GPU, the formula elsewhere."""

    op = "rms_norm_backward"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the operator or the formula; the output is row-major, whatever the layout of x."""
        fused = device.type == "cuda" and hasattr(torch.ops.aten, "_fused_rms_norm_backward")
        gradients = _fused_rms_norm_gradients if fused else rms_norm_gradients

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return gradients(*arguments)

        return run

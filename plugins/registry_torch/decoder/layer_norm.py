"""torch's own layer norm and its gradients, and what Inductor makes of them."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Layer norm of ``[..., cols]``, row-major whatever the layout of x.

    A half x beside float32 weights is computed in float32, as torch asks.
    """
    learnt = bias if weight is None else weight
    wide = x if learnt is None else x.to(learnt.dtype)
    return torch.nn.functional.layer_norm(wide, x.shape[-1:], weight, bias, eps).to(x.dtype).contiguous()


def layer_norm_gradients(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float,
    need_x: bool, need_weight: bool, need_bias: bool,
) -> Gradients:  # fmt: skip
    """Gradients ``[..., cols]`` and twice ``[cols]``, in fp32 or wider; one that is not needed is empty."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide, gradient = x.to(accumulator), grad_y.to(accumulator)
    centred = wide - wide.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    unit, cols = centred * inverse, x.shape[-1]
    grad_x, grad_weight, grad_bias = x.new_empty(0), _none_of(x, weight), _none_of(x, bias)
    if need_x:
        weighted = gradient if weight is None else gradient * weight.to(accumulator)
        common = weighted.mean(-1, keepdim=True) + unit * (weighted * unit).mean(-1, keepdim=True)
        grad_x = ((weighted - common) * inverse).to(x.dtype).contiguous()
    if need_weight and weight is not None:
        grad_weight = (gradient * unit).reshape(-1, cols).sum(0).to(weight.dtype)
    if need_bias and bias is not None:
        grad_bias = gradient.reshape(-1, cols).sum(0).to(bias.dtype)
    return grad_x, grad_weight, grad_bias


def _none_of(x: torch.Tensor, learnt: torch.Tensor | None) -> torch.Tensor:
    return (x if learnt is None else learnt).new_empty(0)


def _fused_gradients(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float,
    need_x: bool, need_weight: bool, need_bias: bool,
) -> Gradients:  # fmt: skip
    """The gradients by torch's CUDA kernels; the backward needs the means and deviations of the forward."""
    shape, x = [x.shape[-1]], x.contiguous()
    needs = [need_x, need_weight and weight is not None, need_bias and bias is not None]
    _, mean, inverse = torch.ops.aten.native_layer_norm(x, shape, weight, bias, eps)
    found = torch.ops.aten.native_layer_norm_backward(grad_y.contiguous(), x, shape, mean, inverse, weight, bias, needs)
    empty = x.new_empty(0), _none_of(x, weight), _none_of(x, bias)
    grad_x, grad_weight, grad_bias = (
        one if needed else none for one, needed, none in zip(found, needs, empty, strict=True)
    )
    return grad_x, grad_weight, grad_bias


class LayerNorm(Native):
    """``torch.nn.functional.layer_norm``; there is no ``out=``."""

    op = "layer_norm"
    returns_outputs = True
    mixed = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Cast where dtypes differ."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return layer_norm(*arguments)

        return run


class LayerNormBackward(Native):
    """``aten.native_layer_norm_backward`` on a GPU; the formula for halves beside float32, which that refuses, and on
    a CPU, where a half's means are rounded to it.
    """

    op = "layer_norm_backward"
    returns_outputs = True
    mixed = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the operator or the formula; the output is row-major, whatever the layout of x."""
        fused = device.type == "cuda" and not problem.traits["mixed"]
        gradients = _fused_gradients if fused else layer_norm_gradients

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return gradients(*arguments)

        return run


class CompiledLayerNorm(InductorImplementation):
    """``torch.nn.functional.layer_norm``."""

    op = "layer_norm"
    name = "torch.compile"
    mixed = True

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., cols]``, ``[cols]`` twice or None, and epsilon."""
        return layer_norm(*values)


class CompiledLayerNormBackward(InductorImplementation):
    """The formula; Inductor fuses it into a kernel over rows and some over columns."""

    op = "layer_norm_backward"
    name = "torch.compile"
    mixed = True

    def function(self, *values: Any) -> Gradients:
        """Takes ``[..., cols]`` twice, ``[cols]`` twice or None, epsilon, and which gradients are needed."""
        grad_y, x, weight, bias, eps, need_x, need_weight, need_bias = values
        return layer_norm_gradients(grad_y, x, weight, bias, eps, need_x, need_weight, need_bias)

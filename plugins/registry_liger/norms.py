"""Liger's rms_norm and layer_norm, with their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from registry import Device, Problem

from .rows import library, liger, row_reasons

_IN_FLOAT32 = "gemma"
"""The library's name for a norm that is computed in fp32 and rounded once."""
_NUMBER_OF_FLOAT32 = 1
"""What ``rms_norm_backward`` takes in place of that name."""


def affine_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why Liger cannot run a layer_norm or its gradient."""
    yield from row_reasons(problem, device)
    if not (problem.weight and problem.bias):
        yield "it needs a weight and a bias"


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x * rsqrt(mean(x**2) + eps) * weight`` over the last dimension."""
    found: torch.Tensor = library("rms_norm").rms_norm_forward(x, weight, eps, 0.0, _IN_FLOAT32, None)[0]
    return found


def rms_norm_backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, need_x: bool, need_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by x and weight; the inverse norms of rows, which the op does not have, are torch's."""
    cols = x.shape[-1]
    norms = torch.linalg.vector_norm(x.view(-1, cols), dim=-1, dtype=torch.float32)
    inverse = norms.square_().div_(cols).add_(eps).rsqrt_()
    block, warps = library("utils").calculate_settings(cols)
    grad_x, grad_weight = library("rms_norm").rms_norm_backward(
        grad_y, x.view(-1, cols), weight, inverse, 0.0, _NUMBER_OF_FLOAT32, block, warps, False, None, need_weight
    )
    return grad_x if need_x else x.new_empty(0), grad_weight if need_weight else weight.new_empty(0)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """``(x - mean(x)) * rsqrt(var(x) + eps) * weight + bias`` over the last dimension."""
    found: torch.Tensor = library("layer_norm").layer_norm_forward(x, weight, bias, eps)[0]
    return found


def layer_norm_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, ...]:
    """The gradients by x, weight and bias; means and inverse deviations of rows are those of the forward kernel."""
    module = library("layer_norm")
    _, rows, mean, inverse, *_ = module.layer_norm_forward(x, weight, bias, eps)
    grad_x, grad_weight, grad_bias = module.layer_norm_backward(
        grad_y, rows, weight, bias, mean, inverse, need_weight, need_bias
    )
    return (
        grad_x if need_x else x.new_empty(0),
        grad_weight if need_weight else weight.new_empty(0),
        grad_bias if need_bias else bias.new_empty(0),
    )


RMS_NORM = liger("rms_norm", rms_norm, row_reasons)
RMS_NORM_BACKWARD = liger("rms_norm_backward", rms_norm_backward, row_reasons)
LAYER_NORM = liger("layer_norm", layer_norm, affine_reasons)
LAYER_NORM_BACKWARD = liger("layer_norm_backward", layer_norm_backward, affine_reasons)

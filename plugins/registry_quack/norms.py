"""QuACK's norms with a gradient, a residual or a mean.

Its gradients need what its forward passes have stored, and the registry's ops do not have: the inverse norms of rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

import registry
from registry import Device, Implementation, Problem

from .rows import reasons

_WIDEST = 128 * 1024
"""Columns beyond which its gradient of float32 rows has too little shared memory."""


def quack_of(
    op: str,
    function: Callable[..., Any],
    unsupported: Callable[[Problem, Device], Iterator[str]],
    *,
    into: bool = False,
    capturable: bool = True,
) -> Implementation:
    """``function`` as the implementation ``quack.<op>``; it serves any number of rows."""
    return registry.implementation_of(
        op,
        f"quack.{op}",
        function,
        library="quack-kernels",
        any_size=True,
        into=into,
        unsupported=unsupported,
        device_types=("cuda",),
        capturable=capturable,
        preference=-10.0,  # not before it was measured: its first call takes seconds
    )


def gradient_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why QuACK cannot run the gradient of a norm."""
    yield from reasons(problem, device)
    if problem.dtype == "float32" and problem.cols > _WIDEST:
        yield f"a float32 row of {problem.cols} elements is too long for its gradient (limit {_WIDEST})"


def layer_norm_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why QuACK cannot run a layer_norm."""
    yield from reasons(problem, device)
    if not problem.weight:
        yield "it needs a weight"


def layer_norm_backward_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why QuACK cannot run the gradient of a layer_norm."""
    yield from gradient_reasons(problem, device)
    if not problem.weight:
        yield "it needs a weight"


def rms_norm_backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, need_x: bool, need_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by x and weight; the inverse norms of rows are torch's."""
    rows = x.view(-1, x.shape[-1])
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32)
    inverse = norms.square_().div_(rows.shape[1]).add_(eps).rsqrt_()
    grad_x, grad_weight, *_ = _functions().rmsnorm_bwd(rows, weight, grad_y.view_as(rows), inverse)
    return grad_x.view_as(x) if need_x else x.new_empty(0), grad_weight if need_weight else weight.new_empty(0)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float
) -> None:
    """``residual += x``, then its norm into x: QuACK writes both to new tensors, which are copied."""
    rows = (x.view(-1, x.shape[-1]), residual.view(-1, x.shape[-1]))
    out, total, _ = _functions().rmsnorm_fwd(rows[0], weight, residual=rows[1], eps=eps, weight_offset=offset)
    rows[0].copy_(out)
    rows[1].copy_(total)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``(x - mean(x)) * rsqrt(var(x) + eps) * weight + bias``; weight and bias are converted to float32."""
    rows, wide = x.view(-1, x.shape[-1]), None if bias is None else bias.float()
    found: torch.Tensor = _functions().layernorm_fwd(rows, weight.float(), wide, eps)
    return found.view_as(x)


def layer_norm_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, ...]:
    """The gradients by x, weight and bias; means and inverse deviations of rows are those of the forward kernel."""
    rows, biased = x.view(-1, x.shape[-1]), bias is not None
    _, inverse, mean = _functions().layernorm_fwd(rows, weight.float(), None, eps, return_rstd=True, return_mean=True)
    grad_x, grad_weight, grad_bias = _functions().layernorm_bwd(
        rows, weight, grad_y.view_as(rows), inverse, mean, has_bias=biased and need_bias
    )
    none = x.new_empty(0)
    return (
        grad_x.view_as(x) if need_x else none,
        grad_weight if need_weight else none.clone(),
        grad_bias if biased and need_bias else none.clone(),
    )


@cache
def _functions() -> Any:
    return importlib.import_module("quack.rmsnorm")


RMS_NORM_BACKWARD = quack_of("rms_norm_backward", rms_norm_backward, gradient_reasons)
FUSED_ADD_RMS_NORM = quack_of("fused_add_rms_norm", fused_add_rms_norm, reasons, into=True)
LAYER_NORM = quack_of("layer_norm", layer_norm, layer_norm_reasons)
LAYER_NORM_BACKWARD = quack_of("layer_norm_backward", layer_norm_backward, layer_norm_backward_reasons)

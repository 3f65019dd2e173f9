"""Liger's SwiGLU of one tensor with both halves, and its GeGLU, which takes the halves as tensors of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from registry import Device, Problem

from .rows import library, liger, row_reasons


def tanh_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why Liger cannot run a gelu_and_mul or its gradient."""
    yield from row_reasons(problem, device)
    if problem.approximate != "tanh":
        yield f"its gelu is the approximation by tanh, not {problem.approximate!r}"


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(x[..., :d]) * x[..., d:]``."""
    found: torch.Tensor = library("swiglu").swiglu_fused_gate_up_forward(x)[1]
    return found


def silu_and_mul_backward(grad_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of ``silu_and_mul`` by x."""
    found: torch.Tensor = library("swiglu").swiglu_fused_gate_up_backward(x, grad_y)
    return found.view_as(x)


def gelu_and_mul(x: torch.Tensor, _approximate: str) -> torch.Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` by tanh, of copies of both halves."""
    found: torch.Tensor = library("geglu").geglu_forward(*_halves(x))[2]
    return found


def gelu_and_mul_backward(grad_y: torch.Tensor, x: torch.Tensor, _approximate: str) -> torch.Tensor:
    """The gradient of ``gelu_and_mul`` by x. Liger writes it over both copies, which are then joined."""
    return torch.cat(library("geglu").geglu_backward(*_halves(x), grad_y), -1)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies, also of a single row, whose halves would be contiguous: the gradient is written over them."""
    gate, up = x.chunk(2, -1)
    return gate.clone(memory_format=torch.contiguous_format), up.clone(memory_format=torch.contiguous_format)


SILU_AND_MUL = liger("silu_and_mul", silu_and_mul, row_reasons)
SILU_AND_MUL_BACKWARD = liger("silu_and_mul_backward", silu_and_mul_backward, row_reasons)
GELU_AND_MUL = liger("gelu_and_mul", gelu_and_mul, tanh_reasons)
GELU_AND_MUL_BACKWARD = liger("gelu_and_mul_backward", gelu_and_mul_backward, tanh_reasons)

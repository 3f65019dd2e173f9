"""FlashInfer's gated activations."""

from __future__ import annotations

import torch

from .adapting import compiled_reasons, flashinfer, library


def silu_and_mul(y: torch.Tensor, x: torch.Tensor) -> None:
    """``silu(x[..., :d]) * x[..., d:]`` into y."""
    library().silu_and_mul(x, out=y)


def gelu_and_mul(y: torch.Tensor, x: torch.Tensor, approximate: str) -> None:
    """``gelu(x[..., :d]) * x[..., d:]`` into y, by erf or by tanh."""
    activate = library().gelu_tanh_and_mul if approximate == "tanh" else library().gelu_and_mul
    activate(x, out=y)


SILU_AND_MUL = flashinfer("silu_and_mul", "silu_and_mul", silu_and_mul, compiled_reasons, into=True)
GELU_AND_MUL = flashinfer("gelu_and_mul", "gelu_and_mul", gelu_and_mul, compiled_reasons, into=True)

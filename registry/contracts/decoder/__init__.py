"""Ops of a decoder beside its products: the gated activations of its MLP."""

from __future__ import annotations

from .gated import GELU_AND_MUL, GELU_AND_MUL_BACKWARD, SILU_AND_MUL, SILU_AND_MUL_BACKWARD

__all__ = ["GELU_AND_MUL", "GELU_AND_MUL_BACKWARD", "SILU_AND_MUL", "SILU_AND_MUL_BACKWARD"]

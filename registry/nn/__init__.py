"""Modules that a model is made of."""

from __future__ import annotations

from .packed_linear import PackedLinear

__all__ = ["PackedLinear"]

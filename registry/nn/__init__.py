"""torch.nn modules with packed weights."""

from __future__ import annotations

from .packed_linear import PackedLinear

__all__ = ["PackedLinear"]

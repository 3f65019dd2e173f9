"""torch.nn modules with packed weights."""

from __future__ import annotations

from .act_order_linear import ActOrderLinear
from .packed_linear import PackedLinear

__all__ = ["ActOrderLinear", "PackedLinear"]

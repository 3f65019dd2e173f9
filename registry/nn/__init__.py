"""torch.nn modules with packed weights."""

from __future__ import annotations

from .act_order_linear import ActOrderLinear
from .packed_a8_linear import PackedA8Linear
from .packed_experts_mlp import PackedExpertsMlp
from .packed_linear import PackedLinear
from .scaled_experts import ScaledExperts
from .scaled_experts_mlp import ScaledExpertsMlp
from .scaled_linear import ScaledLinear

__all__ = [
    "ActOrderLinear",
    "PackedA8Linear",
    "PackedExpertsMlp",
    "PackedLinear",
    "ScaledExperts",
    "ScaledExpertsMlp",
    "ScaledLinear",
]

"""Losses over a vocabulary."""

from __future__ import annotations

from .cross_entropy import CROSS_ENTROPY
from .cross_entropy_backward import CROSS_ENTROPY_BACKWARD
from .fused_linear_cross_entropy import FUSED_LINEAR_CROSS_ENTROPY
from .fused_linear_cross_entropy_backward import FUSED_LINEAR_CROSS_ENTROPY_BACKWARD
from .fused_linear_cross_entropy_gradients import FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS

__all__ = [
    "CROSS_ENTROPY",
    "CROSS_ENTROPY_BACKWARD",
    "FUSED_LINEAR_CROSS_ENTROPY",
    "FUSED_LINEAR_CROSS_ENTROPY_BACKWARD",
    "FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS",
]

"""Attention over keys and values."""

from __future__ import annotations

from .attention import ATTENTION
from .attention_backward import ATTENTION_BACKWARD

__all__ = ["ATTENTION", "ATTENTION_BACKWARD"]

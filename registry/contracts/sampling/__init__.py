"""Drawing tokens from logits."""

from __future__ import annotations

from .top_k_top_p import TOP_K_TOP_P_SAMPLING

__all__ = ["TOP_K_TOP_P_SAMPLING"]

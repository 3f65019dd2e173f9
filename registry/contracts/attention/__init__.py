"""Attention: of a few new tokens to a cache of keys and values."""

from __future__ import annotations

from .decode import ATTENTION_DECODE

__all__ = ["ATTENTION_DECODE"]

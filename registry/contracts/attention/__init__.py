"""Attention over keys and values: of a sequence to itself, and of a few new tokens to a cache, of latents too."""

from __future__ import annotations

from .attention import ATTENTION
from .attention_backward import ATTENTION_BACKWARD
from .decode import ATTENTION_DECODE
from .mla_decode import MLA_DECODE
from .varlen import ATTENTION_VARLEN

__all__ = ["ATTENTION", "ATTENTION_BACKWARD", "ATTENTION_DECODE", "ATTENTION_VARLEN", "MLA_DECODE"]

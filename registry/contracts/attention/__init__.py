"""Attention over keys and values: of a sequence to itself, and of a few new tokens to a cache, of latents too."""

from __future__ import annotations

from .attention import ATTENTION
from .attention_backward import ATTENTION_BACKWARD
from .decode import ATTENTION_DECODE
from .mla_decode import MLA_DECODE
from .varlen import ATTENTION_VARLEN
from .varlen_backward import ATTENTION_VARLEN_BACKWARD

__all__ = [
    "ATTENTION",
    "ATTENTION_BACKWARD",
    "ATTENTION_DECODE",
    "ATTENTION_VARLEN",
    "ATTENTION_VARLEN_BACKWARD",
    "MLA_DECODE",
]

"""Packed weights: one type for all weights of a few bits; packing, quantising, checking and unpacking them."""

from __future__ import annotations

from .checks import GROUP_SIZES, SCALE_DTYPES, ZeroKind, check_format, check_order, check_parts, zero_kind
from .codebooks import CODEBOOKS, levels
from .experts import PackedExperts
from .layout import (
    ACT_ORDER,
    BITS,
    LAYOUT,
    column_pieces,
    dequantized,
    groups,
    layout_name,
    pack,
    per_word,
    symmetric_zero,
    unpack,
    words,
)
from .quantizing import quantize
from .weight import PackedWeight

__all__ = [
    "ACT_ORDER",
    "BITS",
    "CODEBOOKS",
    "GROUP_SIZES",
    "LAYOUT",
    "SCALE_DTYPES",
    "PackedExperts",
    "PackedWeight",
    "ZeroKind",
    "check_format",
    "check_order",
    "check_parts",
    "column_pieces",
    "dequantized",
    "groups",
    "layout_name",
    "levels",
    "pack",
    "per_word",
    "quantize",
    "symmetric_zero",
    "unpack",
    "words",
    "zero_kind",
]

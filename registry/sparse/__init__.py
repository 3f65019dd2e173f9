"""2:4 sparse weights, which keep two of each four elements along K: their layout, making, checking and reading."""

from __future__ import annotations

from .checks import VALUE_DTYPES, check_parts
from .layout import CODES, dense, meta_words, pack_codes
from .sparsifying import sparsify24
from .weight import Sparse24Weight

__all__ = [
    "CODES",
    "VALUE_DTYPES",
    "Sparse24Weight",
    "check_parts",
    "dense",
    "meta_words",
    "pack_codes",
    "sparsify24",
]

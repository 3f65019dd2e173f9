"""2:4 sparse weights: of each four elements along K two are kept; how they lie, are made, checked and read back."""

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

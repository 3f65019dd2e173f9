"""cuBLASLt (NVIDIA) through nvmath-python: products whose algorithm, of all that its heuristics name, is tuned.

An adapter: ``pip install 'kernel-registry[cublaslt]'`` installs nvmath-python, and all is unsupported without it. torch
runs the first algorithm that the heuristics name; here the others are measured, too.
"""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


@registry.implements("linear")
def linear_implementations() -> list[Implementation]:
    """The product with its bias in one kernel."""
    from .products import LtLinear

    return [LtLinear()]


@registry.implements("scaled_mm")
def scaled_mm_implementations() -> list[Implementation]:
    """float8 with scales and bias in the product's kernel, and int8 with both after it."""
    from .products import LtFloat8, LtInt8

    return [LtFloat8(), LtInt8()]

"""Humming (vLLM project, Apache-2.0): products with packed weights of 1, 2, 4 and 8 bits, by kernels made for a shape.

An adapter: the library is installed by ``pip install 'kernel-registry[humming]'``, and all is unsupported without it.
The ops with int8 or float8 activations (gemm_w4a8, gemm_w8a8) are left out: Humming rounds the scales of groups to
integers up to 1024, packs zero points to the weight's bits and takes none beside 8-bit weights. So is gemm_nf4, whose
table it does not know.
"""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


def _both(op: str) -> list[Implementation]:
    from .gemm import HummingHeuristic, HummingTiles

    return [HummingHeuristic(op), HummingTiles(op)]


@registry.implements("gemm_int4")
def gemm_int4_implementations() -> list[Implementation]:
    """Humming's own choice of a tile, and tiles to tune."""
    return _both("gemm_int4")


@registry.implements("gemm_int8")
def gemm_int8_implementations() -> list[Implementation]:
    """Humming's own choice of a tile, and tiles to tune."""
    return _both("gemm_int8")


@registry.implements("gemm_int2")
def gemm_int2_implementations() -> list[Implementation]:
    """Humming's own choice of a tile, and tiles to tune."""
    return _both("gemm_int2")


@registry.implements("gemm_int1")
def gemm_int1_implementations() -> list[Implementation]:
    """Humming's own choice of a tile, and tiles to tune."""
    return _both("gemm_int1")

"""numba kernels for softmax and square, on CPUs and GPUs, and an op of this package's own: ``numba::row_sum``.

This file is all that is imported when the host looks for plugins. numba waits until one of the ops is first used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import registry

if TYPE_CHECKING:
    from registry import Implementation, Op

KERNEL_REGISTRY_API = 1


@registry.defines
def ops() -> Iterable[Op]:
    """The op that this package adds."""
    from .row_sum import ROW_SUM

    return [ROW_SUM]


@registry.implements("numba::row_sum")
def row_sum_implementations() -> Iterable[Implementation]:
    """One form for CPUs."""
    from .cpu import RowSum

    return [RowSum()]


@registry.implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """One form for CPUs, one for GPUs."""
    from .cpu import Softmax
    from .gpu import GpuSoftmax

    return [Softmax(), GpuSoftmax()]


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    """One form for CPUs, one for GPUs."""
    from .cpu import Square
    from .gpu import GpuSquare

    return [Square(), GpuSquare()]

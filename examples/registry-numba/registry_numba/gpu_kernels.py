# mypy: disable-error-code="attr-defined,untyped-decorator"
"""CUDA kernels in numba's dialect. Imported only where numba.cuda is wanted."""

from __future__ import annotations

import math
from typing import Any

import numba
from numba import cuda

MAX_THREADS = 1024
"""Of a block; both reductions need a power of two."""


@cuda.jit
def square(x: Any, y: Any) -> None:
    """``y[i] = x[i] * x[i]``, a thread every ``gridsize`` elements."""
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i] = x[i] * x[i]


@cuda.jit
def softmax(x: Any, y: Any) -> None:
    """A block a row: maximum and sum through shared memory, in float32."""
    partial = cuda.shared.array(MAX_THREADS, numba.float32)
    row, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    cols = x.shape[1]

    top = numba.float32(-math.inf)
    for col in range(thread, cols, threads):
        top = max(top, x[row, col])
    partial[thread] = top
    cuda.syncthreads()
    width = threads // 2
    while width > 0:
        if thread < width:
            partial[thread] = max(partial[thread], partial[thread + width])
        cuda.syncthreads()
        width //= 2
    top = partial[0]
    cuda.syncthreads()

    total = numba.float32(0.0)
    for col in range(thread, cols, threads):
        total += math.exp(x[row, col] - top)
    partial[thread] = total
    cuda.syncthreads()
    width = threads // 2
    while width > 0:
        if thread < width:
            partial[thread] += partial[thread + width]
        cuda.syncthreads()
        width //= 2
    factor = numba.float32(1.0) / partial[0]

    for col in range(thread, cols, threads):
        y[row, col] = math.exp(x[row, col] - top) * factor

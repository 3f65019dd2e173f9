"""The loops. numba compiles each for the element type it is asked for and keeps the result on disk."""

# prange is numba's: these functions are read by its compiler and not run by Python

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np


@numba.njit(parallel=True, nogil=True, cache=True)
def square(x: Any, y: Any, block: int) -> None:
    """``y[i] = x[i] * x[i]``, ``block`` elements a task."""
    n = x.shape[0]
    for task in numba.prange((n + block - 1) // block):
        for i in range(task * block, min(n, (task + 1) * block)):
            y[i] = x[i] * x[i]


@numba.njit(parallel=True, nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def softmax(x: Any, y: Any, block: int) -> None:
    """Softmax of each row, ``block`` rows a task. Reassociation lets the sum use vector registers."""
    rows, cols = x.shape
    for task in numba.prange((rows + block - 1) // block):
        for row in range(task * block, min(rows, (task + 1) * block)):
            top = x[row, 0]
            for col in range(1, cols):
                top = max(top, x[row, col])
            total = x.dtype.type(0)
            for col in range(cols):
                y[row, col] = math.exp(x[row, col] - top)
                total += y[row, col]
            factor = x.dtype.type(1) / total
            for col in range(cols):
                y[row, col] *= factor


@numba.njit(parallel=True, nogil=True, cache=True, fastmath={"reassoc"})
def row_sum(x: Any, y: Any, block: int) -> None:
    """The sum of each row, ``block`` rows a task, accumulated in float64."""
    rows, cols = x.shape
    for task in numba.prange((rows + block - 1) // block):
        for row in range(task * block, min(rows, (task + 1) * block)):
            total = np.float64(0)
            for col in range(cols):
                total += x[row, col]
            y[row] = total

"""The gradient of softmax over the columns of a row-major matrix, from its output, accumulated in fp32.

``cols`` is ``units * MULTIPLE``, as in the softmax kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "units"])
def row_softmax_backward(
    grad_x, grad_y, y, rows, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Each program holds ROWS whole rows of both in registers and reads them once. BLOCK >= cols."""
    cols = units * MULTIPLE
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    mask = (first + row < rows) & (col < cols)
    weight = tl.load(y + first * cols + place, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(grad_y + first * cols + place, mask=mask, other=0.0).to(tl.float32)
    result = weight * (gradient - tl.sum(weight * gradient, axis=1, keep_dims=True))
    tl.store(grad_x + first * cols + place, result.to(grad_x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["units"])
def looped_softmax_backward(
    grad_x, grad_y, y, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr
):
    """A row a program in two passes; the second read, last columns first, comes from L2."""
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64) * cols
    grad_x += row
    grad_y += row
    y += row
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    products = tl.zeros([LANES, VECTOR], tl.float32)
    for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        mask = place < cols
        weight = tl.load(y + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        gradient = tl.load(grad_y + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        products += weight * gradient
    total = tl.sum(tl.sum(products, axis=1), axis=0)
    blocks = tl.cdiv(cols, LANES * VECTOR)
    for step in tl.range(0, blocks, num_stages=STAGES):
        place = (blocks - 1 - step) * (LANES * VECTOR) + item
        mask = place < cols
        weight = tl.load(y + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        gradient = tl.load(grad_y + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        result = weight * (gradient - total)
        tl.store(grad_x + place, result.to(grad_x.dtype.element_ty), mask=mask, eviction_policy="evict_first")

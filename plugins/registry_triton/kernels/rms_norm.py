"""RMS norm over the columns of a row-major matrix, accumulated in fp32 (Zhang & Sennrich 2019).

``cols`` is ``units * MULTIPLE``, as in the softmax kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "units"])
def row_rms_norm(y, x, weight, eps, rows, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program holds ROWS whole rows in registers and reads them once. BLOCK >= cols."""
    cols = units * MULTIPLE
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    mask = (first + row < rows) & (col < cols)
    value = tl.load(x + first * cols + place, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
    mean = tl.sum(value * value, axis=1, keep_dims=True) / cols
    result = value * tl.rsqrt(mean + eps) * gain
    tl.store(y + first * cols + place, result.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["units"])
def looped_rms_norm(
    y, x, weight, eps, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr
):
    """A row a program in two passes; the second read, last columns first, comes from L2."""
    cols = units * MULTIPLE
    x += tl.program_id(0).to(tl.int64) * cols
    y += tl.program_id(0).to(tl.int64) * cols
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    squares = tl.zeros([LANES, VECTOR], tl.float32)
    for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        value = tl.load(x + place, mask=place < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        squares += value * value
    scale = tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / cols + eps)
    blocks = tl.cdiv(cols, LANES * VECTOR)
    for step in tl.range(0, blocks, num_stages=STAGES):
        place = (blocks - 1 - step) * (LANES * VECTOR) + item
        mask = place < cols
        value = tl.load(x + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        gain = tl.load(weight + place, mask=mask, eviction_policy="evict_last").to(tl.float32)
        tl.store(y + place, (value * scale * gain).to(y.dtype.element_ty), mask=mask, eviction_policy="evict_first")

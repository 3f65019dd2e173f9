"""A sum into the residual and its RMS norm into x, over the columns of row-major matrices, in fp32.

``cols`` is ``units * MULTIPLE``, as in the softmax kernels. ``weight`` may be None.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .dependents import await_kernel_ahead


@triton.jit(do_not_specialize=["rows", "units"])
def row_fused_add_rms_norm(
    x, residual, weight, eps, offset, rows, units,
    MULTIPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Each program holds the sums of ROWS whole rows in registers and reads both once. BLOCK >= cols."""
    await_kernel_ahead(DEPENDENT)
    cols = units * MULTIPLE
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    mask = (first + row < rows) & (col < cols)
    x += first * cols
    residual += first * cols
    total = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    # on its way while the row is summed: a wait for memory less, which is a tenth of the time of few rows
    if weight is not None:
        gain = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
    tl.store(residual + place, total.to(residual.dtype.element_ty), mask=mask)
    mean = tl.sum(total * total, axis=1, keep_dims=True) / cols
    result = total * tl.rsqrt(mean + eps)
    if weight is not None:
        result *= gain.to(tl.float32) + offset
    tl.store(x + place, result.to(x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["units"])
def looped_fused_add_rms_norm(
    x, residual, weight, eps, offset, units,
    MULTIPLE: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A row a program in two passes; the second adds again, last columns first, what it reads from L2.

    Nothing is written before all is read once, and a sum is never rounded before it is normalised.
    """
    cols = units * MULTIPLE
    x += tl.program_id(0).to(tl.int64) * cols
    residual += tl.program_id(0).to(tl.int64) * cols
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    squares = tl.zeros([LANES, VECTOR], tl.float32)
    for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        mask = place < cols
        total = tl.load(x + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        total += tl.load(residual + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        squares += total * total
    scale = tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / cols + eps)
    blocks = tl.cdiv(cols, LANES * VECTOR)
    for step in tl.range(0, blocks, num_stages=STAGES):
        place = (blocks - 1 - step) * (LANES * VECTOR) + item
        mask = place < cols
        total = tl.load(x + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        total += tl.load(residual + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        tl.store(residual + place, total.to(residual.dtype.element_ty), mask=mask, eviction_policy="evict_first")
        result = total * scale
        if weight is not None:
            gain = tl.load(weight + place, mask=mask, eviction_policy="evict_last").to(tl.float32)
            result *= gain + offset
        tl.store(x + place, result.to(x.dtype.element_ty), mask=mask, eviction_policy="evict_first")

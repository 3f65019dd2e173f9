"""Layer norm over the columns of a row-major matrix, in fp32 (Ba et al. 2016). ``weight`` and ``bias`` may be None.

``cols`` is ``units * MULTIPLE``, as in the softmax kernels. A variance is of what is left when the mean is subtracted,
never a difference of two means; the mean of equal numbers is that number, by ``div_rn``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "units"])
def row_layer_norm(
    y, x, weight, bias, eps, rows, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Each program holds ROWS whole rows in registers and reads them once. BLOCK >= cols."""
    cols = units * MULTIPLE
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    mask = (first + row < rows) & (col < cols)
    value = tl.load(x + first * cols + place, mask=mask, other=0.0)
    # on their way while the row is summed: a wait for memory less, which is a tenth of the time of few rows
    if weight is not None:
        scale = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
    if bias is not None:
        shift = tl.load(bias + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
    value = value.to(tl.float32)
    length = cols.to(tl.float32)
    value = tl.where(mask, value - tl.div_rn(tl.sum(value, axis=1, keep_dims=True), length), 0.0)
    result = value * tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / length + eps)
    if weight is not None:
        result *= scale.to(tl.float32)
    if bias is not None:
        result += shift.to(tl.float32)
    tl.store(y + first * cols + place, result.to(y.dtype.element_ty), mask=mask)


@triton.jit
def row_statistics(x, cols, eps, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr):
    """Mean and inverse standard deviation of the row at ``x``, read once: a mean and a sum of squared differences a
    lane (Welford 1962), combined at the end (Chan et al. 1979).
    """
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    mean = tl.zeros([LANES, VECTOR], tl.float32)
    squares = tl.zeros([LANES, VECTOR], tl.float32)
    for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        value = tl.load(x + place, mask=place < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        # only the last step lacks lanes
        difference = tl.where(place < cols, value - mean, 0.0)
        mean += difference / (start // (LANES * VECTOR) + 1)
        squares += difference * (value - mean)
    count = tl.where(item < cols, (cols - 1 - item) // (LANES * VECTOR) + 1, 0).to(tl.float32)
    length = cols.to(tl.float32)
    whole = tl.div_rn(tl.sum(tl.sum(mean * count, axis=1), axis=0), length)
    squares += count * (mean - whole) * (mean - whole)
    return whole, tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / length + eps)


@triton.jit(do_not_specialize=["units"])
def looped_layer_norm(
    y, x, weight, bias, eps, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A row a program in two passes; the second read, last columns first, comes from L2."""
    cols = units * MULTIPLE
    x += tl.program_id(0).to(tl.int64) * cols
    y += tl.program_id(0).to(tl.int64) * cols
    mean, inverse = row_statistics(x, cols, eps, LANES, VECTOR, STAGES)
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    blocks = tl.cdiv(cols, LANES * VECTOR)
    for step in tl.range(0, blocks, num_stages=STAGES):
        place = (blocks - 1 - step) * (LANES * VECTOR) + item
        mask = place < cols
        result = tl.load(x + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        result = (result - mean) * inverse
        if weight is not None:
            result *= tl.load(weight + place, mask=mask, eviction_policy="evict_last").to(tl.float32)
        if bias is not None:
            result += tl.load(bias + place, mask=mask, eviction_policy="evict_last").to(tl.float32)
        tl.store(y + place, result.to(y.dtype.element_ty), mask=mask, eviction_policy="evict_first")

"""Softmax over the columns of a row-major matrix, accumulated in fp32.

``cols`` is ``units * MULTIPLE``: the compiler then knows that rows start at multiples of MULTIPLE elements and uses
wide accesses, while one variant serves many row lengths. Exponentials are of base 2, which the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
# instead of -inf, so that lanes without a column yet do not compute inf - inf
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit(do_not_specialize=["rows", "units"])
def row_softmax(y, x, rows, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program holds ROWS whole rows in registers and reads them once. BLOCK >= cols."""
    cols = units * MULTIPLE
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    mask = (first + row < rows) & (col < cols)
    value = tl.load(x + first * cols + place, mask=mask, other=-float("inf")).to(tl.float32)
    power = tl.exp2((value - tl.max(value, axis=1, keep_dims=True)) * LOG2E)
    result = power * (1.0 / tl.sum(power, axis=1, keep_dims=True))
    tl.store(y + first * cols + place, result.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _accumulate(x, begin, end, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr):
    """Running maximum and sum of exponentials of columns begin..end, one of each a lane (Milakov & Gimelshein 2018).

    A lane takes VECTOR columns at a time and rescales its sum once for all of them: the rescaling by scalar would
    need a reduction over the program in every step, the rescaling by column twice the exponentials.
    """
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for start in tl.range(begin, end, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        value = tl.load(x + place, mask=place < end, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        new = tl.maximum(top, tl.max(value, axis=1))
        power = tl.exp2((value - new[:, None]) * LOG2E)
        total = total * tl.exp2((top - new) * LOG2E) + tl.sum(power, axis=1)
        top = new
    return top, total


@triton.jit
def _normalise(y, x, begin, end, peak, scale, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr):
    """Write columns begin..end, the last ones first: they were read last and are still in the cache."""
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    blocks = tl.cdiv(end - begin, LANES * VECTOR)
    for step in tl.range(0, blocks, num_stages=STAGES):
        place = begin + (blocks - 1 - step) * (LANES * VECTOR) + item
        mask = place < end
        value = tl.load(x + place, mask=mask, eviction_policy="evict_first").to(tl.float32)
        result = tl.exp2((value - peak) * LOG2E) * scale
        tl.store(y + place, result.to(y.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["units"])
def online_softmax(
    y, x, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr
):
    """A row a program in two passes; the second read comes from L2."""
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64) * cols
    top, total = _accumulate(x + row, 0, cols, LANES, VECTOR, STAGES)
    peak = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0)
    _normalise(y + row, x + row, 0, cols, peak, scale, LANES, VECTOR, STAGES)


@triton.jit
def _span(units, MULTIPLE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Offset of this program's row, and the columns of that row which are its own."""
    cols = units * MULTIPLE
    program = tl.program_id(0)
    span = tl.cdiv(cols, SPLITS * BLOCK) * BLOCK
    begin = tl.minimum((program % SPLITS) * span, cols)
    return (program // SPLITS).to(tl.int64) * cols, begin, tl.minimum(begin + span, cols)


@triton.jit(do_not_specialize=["units"])
def partial_softmax(
    tops, totals, x, units, MULTIPLE: tl.constexpr, SPLITS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """First of two launches: maximum and sum of one of SPLITS spans of a row. tops, totals: fp32 [rows, SPLITS]."""
    row, begin, end = _span(units, MULTIPLE, SPLITS, LANES * VECTOR)
    top, total = _accumulate(x + row, begin, end, LANES, VECTOR, STAGES)
    peak = tl.max(top, axis=0)
    tl.store(tops + tl.program_id(0), peak)
    tl.store(totals + tl.program_id(0), tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0))


@triton.jit(do_not_specialize=["units"])
def combine_softmax(
    y, x, tops, totals, units, MULTIPLE: tl.constexpr, SPLITS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Second launch: every program combines the row's partial results and writes its own span."""
    split = tl.program_id(0) // SPLITS * SPLITS + tl.arange(0, SPLITS)
    top = tl.load(tops + split)
    peak = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(tl.load(totals + split) * tl.exp2((top - peak) * LOG2E), axis=0)
    row, begin, end = _span(units, MULTIPLE, SPLITS, LANES * VECTOR)
    _normalise(y + row, x + row, begin, end, peak, scale, LANES, VECTOR, STAGES)

"""The gradients of RMS norm by its input and its weight, accumulated in fp32.

``cols`` is ``units * MULTIPLE``, as in the softmax kernels. With ``unit = x / rms`` and ``weighted = grad_y * weight``:
``grad_x = (weighted - unit * mean(weighted * unit)) / rms`` and ``grad_weight = sum(grad_y * unit)`` over rows. Each
program sums its rows into a row of ``partial``; a last launch adds those in order, so that two runs are equal.
Without NEED_X or NEED_WEIGHT nothing is computed for that gradient, and its tensors are not touched.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "units"])
def row_rms_norm_backward(
    grad_x, partial, grad_y, x, weight, eps, rows, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, NEED_X: tl.constexpr, NEED_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Programs stay and take ROWS whole rows at a time, read once. BLOCK >= cols. partial: fp32 [programs, cols]."""
    cols = units * MULTIPLE
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    inside = col < cols
    gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for block in tl.range(program, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        first = block * ROWS
        mask = (first + row < rows) & inside
        value = tl.load(x + first * cols + place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(grad_y + first * cols + place, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / cols + eps)
        # without eps a row that is not there would be 0 * inf
        unit = tl.where(mask, value * inverse, 0.0)
        if NEED_WEIGHT:
            total += gradient * unit
        if NEED_X:
            weighted = gradient * gain
            mean = tl.sum(weighted * unit, axis=1, keep_dims=True) / cols
            result = (weighted - unit * mean) * inverse
            tl.store(grad_x + first * cols + place, result.to(grad_x.dtype.element_ty), mask=mask)
    if NEED_WEIGHT:
        tl.store(partial + program * cols + col, tl.sum(total, axis=0, keep_dims=True), mask=inside)


@triton.jit(do_not_specialize=["units"])
def rms_norm_backward_means(
    inverses, means, grad_y, x, weight, eps, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr, NEED_X: tl.constexpr,
):  # fmt: skip
    """First of three launches for long rows, a row a program: 1 / rms and mean(weighted * unit). Both fp32 [rows]."""
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64)
    x += row * cols
    grad_y += row * cols
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    squares = tl.zeros([LANES, VECTOR], tl.float32)
    products = tl.zeros([LANES, VECTOR], tl.float32)
    for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        mask = place < cols
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        squares += value * value
        if NEED_X:
            gradient = tl.load(grad_y + place, mask=mask, other=0.0).to(tl.float32)
            gain = tl.load(weight + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
            products += gradient * gain * value
    inverse = tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / cols + eps)
    tl.store(inverses + row, inverse)
    if NEED_X:
        tl.store(means + row, tl.sum(tl.sum(products, axis=1), axis=0) / cols * inverse)


@triton.jit(do_not_specialize=["rows", "span", "units"])
def rms_norm_backward_columns(
    grad_x, partial, inverses, means, grad_y, x, weight, rows, span, units, MULTIPLE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, NEED_X: tl.constexpr, NEED_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Second launch: COLS columns and ``span`` rows a program, ROWS of them at a time. partial: fp32 [spans, cols]."""
    cols = units * MULTIPLE
    blocks = tl.cdiv(cols, COLS)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % blocks) * COLS + tl.arange(0, COLS)[None, :]
    inside = col < cols
    gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLS], tl.float32)
    end = tl.minimum(group * span + span, rows)
    for first in tl.range(group * span, end, ROWS):
        here = first + row < end
        mask = here & inside
        inverse = tl.load(inverses + first + row, mask=here, other=0.0)
        place = (first + row) * cols + col
        unit = tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * inverse
        gradient = tl.load(grad_y + place, mask=mask, other=0.0).to(tl.float32)
        if NEED_WEIGHT:
            total += gradient * unit
        if NEED_X:
            mean = tl.load(means + first + row, mask=here, other=0.0)
            result = (gradient * gain - unit * mean) * inverse
            tl.store(grad_x + place, result.to(grad_x.dtype.element_ty), mask=mask)
    if NEED_WEIGHT:
        tl.store(partial + group * cols + col, tl.sum(total, axis=0, keep_dims=True), mask=inside)


@triton.jit(do_not_specialize=["count", "units"])
def sum_partial(grad_weight, partial, count, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Last launch: add the ``count`` rows of ``partial``, ROWS at a time, always in the same order."""
    cols = units * MULTIPLE
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    inside = col < cols
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in tl.range(0, count, ROWS):
        mask = (first + row < count) & inside
        total += tl.load(partial + (first + row) * cols + col, mask=mask, other=0.0)
    result = tl.sum(total, axis=0, keep_dims=True)
    tl.store(grad_weight + col, result.to(grad_weight.dtype.element_ty), mask=inside)

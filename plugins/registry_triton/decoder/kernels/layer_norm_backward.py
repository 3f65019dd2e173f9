"""The gradients of layer norm by its input, its weight and its bias, in fp32.

``cols`` is ``units * MULTIPLE``, as in the softmax kernels. With ``unit = (x - mean) / deviation`` and ``weighted =
grad_y * weight``: ``grad_x = (weighted - mean(weighted) - unit * mean(weighted * unit)) / deviation``, ``grad_weight =
sum(grad_y * unit)`` and ``grad_bias = sum(grad_y)`` over rows. Each program sums its rows into a row of ``partial`` and
one of ``partial_bias``; a last launch adds those in order, so that two runs are equal. Without NEED_X, NEED_WEIGHT or
NEED_BIAS nothing is computed for that gradient, and its tensors are not touched. ``weight`` may be None.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .layer_norm import row_statistics


@triton.jit(do_not_specialize=["rows", "units"])
def row_layer_norm_backward(
    grad_x, partial, partial_bias, grad_y, x, weight, eps, rows, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, NEED_X: tl.constexpr, NEED_WEIGHT: tl.constexpr,
    NEED_BIAS: tl.constexpr,
):  # fmt: skip
    """Programs stay and take ROWS whole rows at a time, read once. BLOCK >= cols. Partials: fp32 [programs, cols]."""
    cols = units * MULTIPLE
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    place = row * cols + col
    inside = col < cols
    length = cols.to(tl.float32)
    if weight is not None:
        gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    total_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for block in tl.range(program, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        first = block * ROWS
        mask = (first + row < rows) & inside
        value = tl.load(x + first * cols + place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(grad_y + first * cols + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - tl.div_rn(tl.sum(value, axis=1, keep_dims=True), length), 0.0)
        inverse = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / length + eps)
        # without eps a row that is not there would be 0 * inf
        unit = tl.where(mask, value * inverse, 0.0)
        if NEED_WEIGHT:
            total += gradient * unit
        if NEED_BIAS:
            total_bias += gradient
        if NEED_X:
            if weight is not None:
                gradient *= gain
            mean = tl.sum(gradient, axis=1, keep_dims=True) / length
            projection = tl.sum(gradient * unit, axis=1, keep_dims=True) / length
            result = (gradient - mean - unit * projection) * inverse
            tl.store(grad_x + first * cols + place, result.to(grad_x.dtype.element_ty), mask=mask)
    if NEED_WEIGHT:
        tl.store(partial + program * cols + col, tl.sum(total, axis=0, keep_dims=True), mask=inside)
    if NEED_BIAS:
        tl.store(partial_bias + program * cols + col, tl.sum(total_bias, axis=0, keep_dims=True), mask=inside)


@triton.jit(do_not_specialize=["rows", "units"])
def layer_norm_backward_rows(
    statistics, grad_y, x, weight, eps, rows, units, MULTIPLE: tl.constexpr, LANES: tl.constexpr,
    VECTOR: tl.constexpr, STAGES: tl.constexpr, NEED_X: tl.constexpr,
):  # fmt: skip
    """First of three launches for long rows, a row a program: ``statistics``, fp32 [4, rows], of what is common to it.

    Its mean and 1 / deviation, mean(weighted) and mean(weighted * unit).
    """
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64)
    x += row * cols
    grad_y += row * cols
    mean, inverse = row_statistics(x, cols, eps, LANES, VECTOR, STAGES)
    tl.store(statistics + row, mean)
    tl.store(statistics + rows + row, inverse)
    if NEED_X:
        item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
        sums = tl.zeros([LANES, VECTOR], tl.float32)
        products = tl.zeros([LANES, VECTOR], tl.float32)
        for start in tl.range(0, cols, LANES * VECTOR, num_stages=STAGES):
            place = start + item
            mask = place < cols
            # where there is no gradient the product is 0
            value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - mean
            gradient = tl.load(grad_y + place, mask=mask, other=0.0).to(tl.float32)
            if weight is not None:
                gradient *= tl.load(weight + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
            sums += gradient
            products += gradient * value
        tl.store(statistics + 2 * rows + row, tl.sum(tl.sum(sums, axis=1), axis=0) / cols)
        tl.store(statistics + 3 * rows + row, tl.sum(tl.sum(products, axis=1), axis=0) / cols * inverse)


@triton.jit(do_not_specialize=["rows", "span", "units"])
def layer_norm_backward_columns(
    grad_x, partial, partial_bias, statistics, grad_y, x, weight, rows, span, units, MULTIPLE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, NEED_X: tl.constexpr, NEED_WEIGHT: tl.constexpr, NEED_BIAS: tl.constexpr,
):  # fmt: skip
    """Second launch: COLS columns and ``span`` rows a program, ROWS of them at a time. Partials: fp32 [spans, cols]."""
    cols = units * MULTIPLE
    blocks = tl.cdiv(cols, COLS)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % blocks) * COLS + tl.arange(0, COLS)[None, :]
    inside = col < cols
    if weight is not None:
        gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLS], tl.float32)
    total_bias = tl.zeros([ROWS, COLS], tl.float32)
    end = tl.minimum(group * span + span, rows)
    for first in tl.range(group * span, end, ROWS):
        here = first + row < end
        mask = here & inside
        mean = tl.load(statistics + first + row, mask=here, other=0.0)
        inverse = tl.load(statistics + rows + first + row, mask=here, other=0.0)
        place = (first + row) * cols + col
        unit = (tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - mean) * inverse
        gradient = tl.load(grad_y + place, mask=mask, other=0.0).to(tl.float32)
        if NEED_WEIGHT:
            total += gradient * unit
        if NEED_BIAS:
            total_bias += gradient
        if NEED_X:
            if weight is not None:
                gradient *= gain
            shift = tl.load(statistics + 2 * rows + first + row, mask=here, other=0.0)
            projection = tl.load(statistics + 3 * rows + first + row, mask=here, other=0.0)
            result = (gradient - shift - unit * projection) * inverse
            tl.store(grad_x + place, result.to(grad_x.dtype.element_ty), mask=mask)
    if NEED_WEIGHT:
        tl.store(partial + group * cols + col, tl.sum(total, axis=0, keep_dims=True), mask=inside)
    if NEED_BIAS:
        tl.store(partial_bias + group * cols + col, tl.sum(total_bias, axis=0, keep_dims=True), mask=inside)


@triton.jit
def _sum_rows(result, partial, count, cols, col, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in tl.range(0, count, ROWS):
        mask = (first + row < count) & (col < cols)
        total += tl.load(partial + (first + row) * cols + col, mask=mask, other=0.0)
    summed = tl.sum(total, axis=0, keep_dims=True)
    tl.store(result + col, summed.to(result.dtype.element_ty), mask=col < cols)


@triton.jit(do_not_specialize=["count", "units"])
def sum_partials(
    grad_weight, grad_bias, partial, partial_bias, count, units, MULTIPLE: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, NEED_WEIGHT: tl.constexpr, NEED_BIAS: tl.constexpr,
):  # fmt: skip
    """Last launch: add the ``count`` rows of the partials, ROWS at a time, always in the same order."""
    cols = units * MULTIPLE
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    if NEED_WEIGHT:
        _sum_rows(grad_weight, partial, count, cols, col, ROWS, COLS)
    if NEED_BIAS:
        _sum_rows(grad_bias, partial_bias, count, cols, col, ROWS, COLS)

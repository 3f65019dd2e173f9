"""Cross-entropy of rows of a row-major matrix of logits, in fp32.

``cols`` is ``units * MULTIPLE``, as in the softmax kernels. ``losses`` is the result, or fp32 scratch that the last
launch sums. Rows whose target is ``ignore_index`` are not read; a target outside of the columns makes the loss NaN.
``weight``, of the columns, may be None. With a ``smoothing`` of 0 nothing is computed for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
# instead of -inf, so that lanes without a column yet do not compute inf - inf
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _finish(losses, lses, row, x, target, weight, lse, weighed, mass, smoothing, cols):
    """Write loss and log-sum-exp of a row, or of several, that are not ignored, from what was summed over columns."""
    inside = (target >= 0) & (target < cols)
    loss = lse - tl.load(x + target, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        loss *= tl.load(weight + target, mask=inside, other=0.0).to(tl.float32)
    even = (lse * mass - weighed) / cols.to(tl.float32)
    loss = tl.where(smoothing > 0.0, (1.0 - smoothing) * loss + smoothing * even, loss)
    loss = tl.where(inside, loss, float("nan"))
    tl.store(lses + row, lse)
    tl.store(losses + row, loss.to(losses.dtype.element_ty))


@triton.jit(do_not_specialize=["ignore_index", "rows", "units"])
def row_cross_entropy(
    losses, lses, logits, targets, weight, ignore_index, smoothing, rows, units, MULTIPLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program holds ROWS whole rows in registers and reads them once. BLOCK >= cols."""
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    there = row < rows
    target = tl.load(targets + row, mask=there, other=0)
    kept = there & (target != ignore_index)
    mask = kept[:, None] & (col < cols)
    x = logits + row * cols
    value = tl.load(x[:, None] + col, mask=mask, other=-float("inf")).to(tl.float32)
    most = tl.max(value, axis=1)
    # only -inf makes this NaN, as it does in torch
    lse = most + tl.log(tl.sum(tl.exp2((value - most[:, None]) * LOG2E), axis=1))
    inside = kept & (target >= 0) & (target < cols)
    loss = lse - tl.load(x + target, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        loss *= tl.load(weight + target, mask=inside, other=0.0).to(tl.float32)
    if smoothing > 0.0:
        if weight is not None:
            each = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
            even = lse * tl.sum(each, axis=1) - tl.sum(tl.where(mask, value * each, 0.0), axis=1)
        else:
            even = lse * cols.to(tl.float32) - tl.sum(tl.where(mask, value, 0.0), axis=1)
        loss = (1.0 - smoothing) * loss + smoothing * (even / cols.to(tl.float32))
    loss = tl.where(kept, tl.where(inside, loss, float("nan")), 0.0)
    tl.store(lses + row, tl.where(kept, lse, 0.0), mask=there)
    tl.store(losses + row, loss.to(losses.dtype.element_ty), mask=there)


@triton.jit
def _accumulate(
    x, weight, begin, end, SMOOTHED: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr
):
    """Maximum and sum of exponentials of columns begin..end, one of each a lane (Milakov & Gimelshein 2018).

    If SMOOTHED also the sums of the weighted logits and of the weights.
    """
    item = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    weighed = tl.zeros([LANES], tl.float32)
    mass = tl.zeros([LANES], tl.float32)
    for start in tl.range(begin, end, LANES * VECTOR, num_stages=STAGES):
        place = start + item
        mask = place < end
        value = tl.load(x + place, mask=mask, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
        if SMOOTHED:
            if weight is not None:
                each = tl.load(weight + place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
                weighed += tl.sum(tl.where(mask, value * each, 0.0), axis=1)
                mass += tl.sum(each, axis=1)
            else:
                weighed += tl.sum(tl.where(mask, value, 0.0), axis=1)
        new = tl.maximum(top, tl.max(value, axis=1))
        power = tl.exp2((value - new[:, None]) * LOG2E)
        total = total * tl.exp2((top - new) * LOG2E) + tl.sum(power, axis=1)
        top = new
    return top, total, weighed, mass


@triton.jit
def _combined(top, total):
    """The log-sum-exp of partial maxima and sums; NaN where nothing was finite."""
    peak = tl.max(top, axis=0)
    whole = tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0)
    return tl.where(whole == 0.0, float("nan"), peak + tl.log(whole))


@triton.jit
def _mass(weight, mass, cols):
    """The sum of all class weights, from the partial ones if there is a weight."""
    if weight is not None:
        return tl.sum(mass, axis=0)
    return cols.to(tl.float32)


@triton.jit(do_not_specialize=["ignore_index", "units"])
def online_cross_entropy(
    losses, lses, logits, targets, weight, ignore_index, smoothing, units, MULTIPLE: tl.constexpr,
    LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A row a program, read once."""
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    x = logits + row * cols
    if target == ignore_index:
        tl.store(lses + row, 0.0)
        tl.store(losses + row, tl.zeros([], tl.float32).to(losses.dtype.element_ty))
    else:
        if smoothing > 0.0:
            top, total, weighed, mass = _accumulate(x, weight, 0, cols, True, LANES, VECTOR, STAGES)
        else:
            top, total, weighed, mass = _accumulate(x, weight, 0, cols, False, LANES, VECTOR, STAGES)
        lse = _combined(top, total)
        whole = _mass(weight, mass, cols)
        _finish(losses, lses, row, x, target, weight, lse, tl.sum(weighed, axis=0), whole, smoothing, cols)


@triton.jit(do_not_specialize=["ignore_index", "units"])
def partial_cross_entropy(
    parts, logits, targets, weight, ignore_index, smoothing, units, MULTIPLE: tl.constexpr, SPLITS: tl.constexpr,
    LANES: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First of two launches or three: one of SPLITS spans of a row. ``parts``: fp32 [4, rows, SPLITS]."""
    cols = units * MULTIPLE
    program = tl.program_id(0).to(tl.int64)
    row = program // SPLITS
    if tl.load(targets + row) != ignore_index:
        span = tl.cdiv(cols, SPLITS * LANES * VECTOR) * (LANES * VECTOR)
        begin = tl.minimum((program % SPLITS).to(tl.int32) * span, cols)
        end = tl.minimum(begin + span, cols)
        x = logits + row * cols
        if smoothing > 0.0:
            top, total, weighed, mass = _accumulate(x, weight, begin, end, True, LANES, VECTOR, STAGES)
        else:
            top, total, weighed, mass = _accumulate(x, weight, begin, end, False, LANES, VECTOR, STAGES)
        peak = tl.max(top, axis=0)
        each = tl.num_programs(0).to(tl.int64)
        tl.store(parts + program, peak)
        tl.store(parts + each + program, tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0))
        tl.store(parts + 2 * each + program, tl.sum(weighed, axis=0))
        tl.store(parts + 3 * each + program, tl.sum(mass, axis=0))


@triton.jit(do_not_specialize=["ignore_index", "units"])
def combine_cross_entropy(
    losses, lses, parts, logits, targets, weight, ignore_index, smoothing, units, MULTIPLE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Second launch: a row a program."""
    cols = units * MULTIPLE
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target == ignore_index:
        tl.store(lses + row, 0.0)
        tl.store(losses + row, tl.zeros([], tl.float32).to(losses.dtype.element_ty))
    else:
        part = parts + row * SPLITS + tl.arange(0, SPLITS)
        each = tl.num_programs(0).to(tl.int64) * SPLITS
        lse = _combined(tl.load(part), tl.load(part + each))
        weighed = tl.sum(tl.load(part + 2 * each), axis=0)
        whole = _mass(weight, tl.load(part + 3 * each), cols)
        _finish(losses, lses, row, logits + row * cols, target, weight, lse, weighed, whole, smoothing, cols)


@triton.jit(do_not_specialize=["ignore_index", "rows", "units"])
def sum_losses(
    loss, losses, targets, weight, ignore_index, rows, units, MULTIPLE: tl.constexpr, MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Last launch, one program: the sum of all losses, or their mean, always in the same order."""
    cols = units * MULTIPLE
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        there = row < rows
        total += tl.load(losses + row, mask=there, other=0.0)
        if MEAN:
            target = tl.load(targets + row, mask=there, other=0)
            counts = there & (target != ignore_index) & (target >= 0) & (target < cols)
            if weight is not None:
                count += tl.load(weight + target, mask=counts, other=0.0).to(tl.float32)
            else:
                count += tl.where(counts, 1.0, 0.0)
    result = tl.sum(total, axis=0)
    if MEAN:
        result = result / tl.sum(count, axis=0)
    tl.store(loss, result.to(loss.dtype.element_ty))

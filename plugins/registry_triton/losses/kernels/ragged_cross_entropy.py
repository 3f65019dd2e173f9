"""Cross-entropy and its gradient where a row is no whole number of 16 bytes, so that rows begin anywhere.

Loads and stores of 16 bytes need addresses that are multiples of it: the loss takes a row's few elements before the
first such address, and behind the last, apart from the others; the gradient goes through all rows as if they were one.
Semantics are those of the kernels of ``cross_entropy`` and ``cross_entropy_backward``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .cross_entropy import LOG2E, LOWEST, _accumulate, _finish, _mass


@triton.jit(do_not_specialize=["ignore_index", "cols"])
def ragged_cross_entropy(
    losses, lses, logits, targets, weight, ignore_index, smoothing, cols, LANES: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A row a program, read once."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target == ignore_index:
        tl.store(lses + row, 0.0)
        tl.store(losses + row, tl.zeros([], tl.float32).to(losses.dtype.element_ty))
    else:
        x = logits + row * cols
        first = (row * cols + VECTOR - 1) // VECTOR * VECTOR
        head = (first - row * cols).to(tl.int32)
        whole = (cols - head) // VECTOR * VECTOR
        gains = weight
        if weight is not None:
            gains = weight + head
        if smoothing > 0.0:
            top, total, weighed, mass = _accumulate(logits + first, gains, 0, whole, True, LANES, VECTOR, STAGES)
        else:
            top, total, weighed, mass = _accumulate(logits + first, gains, 0, whole, False, LANES, VECTOR, STAGES)
        item = tl.arange(0, 2 * VECTOR)
        col = tl.where(item < VECTOR, item, item - VECTOR + head + whole)
        mask = tl.where(item < VECTOR, item < head, col < cols)
        rest = tl.load(x + col, mask=mask, other=-float("inf")).to(tl.float32)
        rest_weighed = tl.where(mask, rest, 0.0)
        rest_mass = tl.zeros([2 * VECTOR], tl.float32)
        if weight is not None:
            rest_mass = tl.load(weight + col, mask=mask & (smoothing > 0.0), other=0.0).to(tl.float32)
            rest_weighed = tl.where(mask, rest * rest_mass, 0.0)
        rest_top = tl.maximum(tl.max(rest, axis=0), LOWEST)
        rest_total = tl.sum(tl.exp2((rest - rest_top) * LOG2E), axis=0)
        peak = tl.maximum(tl.max(top, axis=0), rest_top)
        sum_of_powers = tl.sum(total * tl.exp2((top - peak) * LOG2E), axis=0)
        sum_of_powers += rest_total * tl.exp2((rest_top - peak) * LOG2E)
        lse = tl.where(sum_of_powers == 0.0, float("nan"), peak + tl.log(sum_of_powers))
        all_weighed = tl.sum(weighed, axis=0) + tl.sum(rest_weighed, axis=0)
        all_mass = _mass(weight, mass, cols)
        if weight is not None:
            all_mass += tl.sum(rest_mass, axis=0)
        _finish(losses, lses, row, x, target, weight, lse, all_weighed, all_mass, smoothing, cols)


@triton.jit
def _terms(
    row, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW: tl.constexpr,
    MEAN: tl.constexpr,
):  # fmt: skip
    """Of a row: whether it counts, its target (-1: none), lse, and factors of the powers, of the target, of all."""
    there = row < rows
    target = tl.load(targets + row, mask=there, other=0)
    kept = there & (target != ignore_index)
    inside = kept & (target >= 0) & (target < cols)
    factor = tl.load(grad_loss + (row if PER_ROW else 0), mask=kept, other=0.0).to(tl.float32)
    if MEAN:
        factor = factor / tl.load(totals)
    factor = tl.where(inside, factor, float("nan"))
    of_target = 1.0 - smoothing
    if weight is not None:
        of_target *= tl.load(weight + target, mask=inside, other=0.0).to(tl.float32)
        of_powers = of_target + smoothing / cols.to(tl.float32) * tl.load(totals + 1)
    else:
        of_powers = of_target + smoothing
    lse = tl.load(lses + row, mask=kept, other=0.0)
    even = smoothing / cols.to(tl.float32) * factor
    return kept, tl.where(inside, target, -1).to(tl.int32), lse, of_powers * factor, of_target * factor, even


@triton.jit(do_not_specialize=["ignore_index", "rows", "cols"])
def ragged_cross_entropy_backward(
    grad_logits, grad_loss, logits, targets, weight, lses, totals, ignore_index, smoothing, rows, cols,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr, PER_ROW: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """BLOCK elements a program, each read and written once. BLOCK <= cols, so that they are of two rows at most."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    last = rows.to(tl.int64) * cols
    row = begin // cols
    # what is behind the last whole vector is with the last program
    whole = last // VECTOR * VECTOR
    kept, target, lse, of_powers, of_target, even = _terms(
        row, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW, MEAN
    )
    next_kept, next_target, next_lse, next_of_powers, next_of_target, next_even = _terms(
        row + 1, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW, MEAN
    )
    skipped = (begin - row * cols).to(tl.int32)
    for part in tl.static_range(2):
        if part == 0:
            item = tl.arange(0, BLOCK)
            mask = begin + item < whole
        else:
            item = (whole - begin).to(tl.int32) + tl.arange(0, VECTOR)
            mask = (item >= 0) & (item < BLOCK) & (begin + item < last)
        col = item + skipped
        later = col >= cols
        col = tl.where(later, col - cols, col)
        counts = tl.where(later, next_kept, kept)
        value = tl.zeros(item.shape, tl.float32)
        if kept | next_kept:
            value = tl.load(logits + begin + item, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        gradient = tl.exp2((value - tl.where(later, next_lse, lse)) * LOG2E) * tl.where(
            later, next_of_powers, of_powers
        )
        gradient -= tl.where(
            col == tl.where(later, next_target, target), tl.where(later, next_of_target, of_target), 0.0
        )
        each = tl.where(later, next_even, even)
        if weight is not None:
            gains = tl.load(weight + col, mask=mask & (smoothing > 0.0), other=0.0, eviction_policy="evict_last")
            each *= gains.to(tl.float32)
        gradient = tl.where(counts, gradient - each, 0.0).to(grad_logits.dtype.element_ty)
        tl.store(grad_logits + begin + item, gradient, mask=mask, eviction_policy="evict_first")

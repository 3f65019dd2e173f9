"""The gradient of cross-entropy where a row is no whole number of 16 bytes, so that rows begin anywhere.

Loads and stores of 16 bytes need addresses that are multiples of it: programs go through all rows as if they were one.
Semantics are those of the kernels of ``cross_entropy_backward``, but that rows which are ignored are read, too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .cross_entropy import LOG2E


@triton.jit
def _terms(
    row, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW: tl.constexpr,
    MEAN: tl.constexpr,
):  # fmt: skip
    """Terms of a row: whether it counts, target (-1: none), lse, and factors of the powers, of the target, of all."""
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


@triton.jit
def _one_row(logits, weight, place, col, mask, kept, target, lse, of_powers, of_target, even, smoothing):
    """The gradient at ``place``, columns ``col`` of one row, whose terms are scalars."""
    value = tl.load(logits + place, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    gradient = tl.exp2((value - lse) * LOG2E) * of_powers - tl.where(col == target, of_target, 0.0)
    if weight is not None:
        gains = tl.load(weight + col, mask=mask & (smoothing > 0.0), other=0.0, eviction_policy="evict_last")
        gradient -= even * gains.to(tl.float32)
    else:
        gradient -= even
    return tl.where(kept, gradient, 0.0)


@triton.jit(do_not_specialize=["ignore_index", "rows", "cols"])
def ragged_cross_entropy_backward(
    grad_logits, grad_loss, logits, targets, weight, lses, totals, ignore_index, smoothing, rows, cols,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr, PER_ROW: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """BLOCK elements a program, each read and written once. BLOCK <= cols, so that they are of two rows at most."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    last = rows.to(tl.int64) * cols
    row = begin // cols
    skipped = (begin - row * cols).to(tl.int32)
    whole = last // VECTOR * VECTOR
    item = tl.arange(0, BLOCK)
    mask = begin + item < whole
    col = item + skipped
    kept, target, lse, of_powers, of_target, even = _terms(
        row, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW, MEAN
    )
    if skipped + BLOCK <= cols:
        gradient = _one_row(
            logits, weight, begin + item, col, mask, kept, target, lse, of_powers, of_target, even, smoothing
        )
    else:
        next_kept, next_target, next_lse, next_of_powers, next_of_target, next_even = _terms(
            row + 1, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW, MEAN
        )
        later = col >= cols
        gradient = _one_row(
            logits, weight, begin + item, tl.where(later, col - cols, col), mask, tl.where(later, next_kept, kept),
            tl.where(later, next_target, target), tl.where(later, next_lse, lse),
            tl.where(later, next_of_powers, of_powers), tl.where(later, next_of_target, of_target),
            tl.where(later, next_even, even), smoothing,
        )  # fmt: skip
    gradient = gradient.to(grad_logits.dtype.element_ty)
    tl.store(grad_logits + begin + item, gradient, mask=mask, eviction_policy="evict_first")
    # what is behind the last whole vector is of the last row, and with the last program
    if begin + BLOCK >= last:
        rest = tl.arange(0, VECTOR)
        rest_mask = whole + rest < last
        rest_col = (whole - (last - cols)).to(tl.int32) + rest
        last_kept, last_target, last_lse, last_of_powers, last_of_target, last_even = _terms(
            last // cols - 1, grad_loss, targets, weight, lses, totals, ignore_index, smoothing, rows, cols, PER_ROW,
            MEAN,
        )  # fmt: skip
        rest_gradient = _one_row(
            logits, weight, whole + rest, rest_col, rest_mask, last_kept, last_target, last_lse, last_of_powers,
            last_of_target, last_even, smoothing,
        )  # fmt: skip
        tl.store(grad_logits + whole + rest, rest_gradient.to(grad_logits.dtype.element_ty), mask=rest_mask)

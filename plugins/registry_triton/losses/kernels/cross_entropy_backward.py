"""The gradient of cross-entropy by its logits, from the log-sum-exp of each row, in fp32.

With ``p = exp(x - lse)``, ``w`` the class weights and ``s`` the smoothing: ``g * ((1 - s) * w[t] * (p - [column t]) +
s / cols * (p * sum(w) - w))``. Rows whose target is ``ignore_index`` are not read, and get 0; rows whose target is
outside of the columns get NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["ignore_index", "rows", "units"])
def cross_entropy_totals(
    totals, targets, weight, ignore_index, rows, units, MULTIPLE: tl.constexpr, BLOCK: tl.constexpr
):
    """First launch, one program. ``totals``: fp32 [2], the weights of all rows that count, and of all classes."""
    cols = units * MULTIPLE
    item = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, rows, BLOCK):
        there = first + item < rows
        target = tl.load(targets + first + item, mask=there, other=0)
        counts = there & (target != ignore_index) & (target >= 0) & (target < cols)
        if weight is not None:
            count += tl.load(weight + target, mask=counts, other=0.0).to(tl.float32)
        else:
            count += tl.where(counts, 1.0, 0.0)
    tl.store(totals, tl.sum(count, axis=0))
    if weight is not None:
        mass = tl.zeros([BLOCK], tl.float32)
        for first in tl.range(0, cols, BLOCK):
            mass += tl.load(weight + first + item, mask=first + item < cols, other=0.0).to(tl.float32)
        tl.store(totals + 1, tl.sum(mass, axis=0))


@triton.jit(do_not_specialize=["ignore_index", "rows", "units"])
def tile_cross_entropy_backward(
    grad_logits, grad_loss, logits, targets, weight, lses, totals, ignore_index, smoothing, rows, units,
    MULTIPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_ROW: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """ROWS rows and BLOCK columns a program, each read and written once. ``totals`` is read for MEAN and a weight."""
    cols = units * MULTIPLE
    blocks = tl.cdiv(cols, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = row < rows
    target = tl.load(targets + row, mask=there, other=0)
    kept = there & (target != ignore_index)
    inside = kept & (target >= 0) & (target < cols)
    if PER_ROW:
        factor = tl.load(grad_loss + row, mask=kept, other=0.0).to(tl.float32)
    else:
        factor = tl.full([ROWS], 1.0, tl.float32) * tl.load(grad_loss).to(tl.float32)
    if MEAN:
        factor = factor / tl.load(totals)
    factor = tl.where(inside, factor, float("nan"))
    of_target = tl.full([ROWS], 1.0, tl.float32) * (1.0 - smoothing)
    even = smoothing / cols.to(tl.float32)
    if weight is not None:
        of_target *= tl.load(weight + target, mask=inside, other=0.0).to(tl.float32)
        of_all = of_target + even * tl.load(totals + 1)
    else:
        of_all = of_target + smoothing
    lse = tl.load(lses + row, mask=kept, other=0.0)
    mask = kept[:, None] & (col < cols)
    place = row[:, None] * cols + col
    value = tl.load(logits + place, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    gradient = tl.exp2((value - lse[:, None]) * LOG2E) * of_all[:, None]
    gradient -= tl.where(col == target[:, None], of_target[:, None], 0.0)
    if weight is not None:
        each = tl.load(weight + col, mask=(col < cols) & (smoothing > 0.0), other=0.0, eviction_policy="evict_last")
        gradient -= even * each.to(tl.float32)
    else:
        gradient -= even
    gradient = tl.where(kept[:, None], gradient * factor[:, None], 0.0)
    tl.store(
        grad_logits + place, gradient.to(grad_logits.dtype.element_ty), mask=there[:, None] & (col < cols),
        eviction_policy="evict_first",
    )  # fmt: skip

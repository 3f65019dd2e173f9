"""The gradient of cross-entropy by some columns of the logits, in place, from the log-sum-exp of each row, in fp32."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["ignore_index", "cols"])
def gradient_of_columns(
    logits, factors, lses, targets, first, ignore_index, smoothing, cols, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of a row a program, each read and written once. ``logits``: [rows, COLUMNS].

    ``first``: one int64, the vocabulary's column that is the first of the chunk; columns past ``cols`` are left alone.
    ``factors`` [rows]: the gradient of each row's loss, NaN where the target is outside of the vocabulary. A row whose
    target is ``ignore_index`` is not read, and gets 0.
    """
    program = tl.program_id(0)
    row = (program // BLOCKS).to(tl.int64)
    col = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.load(first)
    mask = (col < COLUMNS) & (begin + col < cols)
    place = logits + row * COLUMNS + col
    target = tl.load(targets + row)
    if target == ignore_index:
        tl.store(place, tl.zeros([BLOCK], tl.float32).to(logits.dtype.element_ty), mask=mask)
    else:
        lse = tl.load(lses + row)
        value = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.exp2((value - lse) * LOG2E) - smoothing / cols.to(tl.float32)
        gradient -= tl.where(begin + col == target, 1.0 - smoothing, 0.0)
        tl.store(place, (gradient * tl.load(factors + row)).to(logits.dtype.element_ty), mask=mask)

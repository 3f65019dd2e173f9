"""Rows of a weight by index, and the sums of gradients by index."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def embedding(y, indices, weight, rows, COLS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """A program copies BLOCK columns of TOKENS rows."""
    BLOCKS: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    row = tl.program_id(0) // BLOCKS * TOKENS + tl.arange(0, TOKENS)
    col = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    index = tl.load(indices + row, mask=there, other=0).to(tl.int64)
    mask = there[:, None] & (col < COLS)[None, :]
    value = tl.load(weight + index[:, None] * COLS + col[None, :], mask=mask)
    tl.store(y + row.to(tl.int64)[:, None] * COLS + col[None, :], value, mask=mask, eviction_policy="evict_first")


@triton.jit
def _one_by_one(total, grad_y, indices, entry, col, start, rows, padding, COLS: tl.constexpr, TOKENS: tl.constexpr):
    """The sums with rows that may not be finite, which a product with zeros would spread to other entries."""
    for row in range(start, tl.minimum(start + TOKENS, rows)):
        index = tl.load(indices + row)
        own = (entry == index) & (index != padding)
        place = (tl.zeros([1], tl.int64) + row) * COLS + col
        value = tl.load(grad_y + place, mask=col < COLS, other=0.0).to(tl.float32)
        total = tl.where(own[:, None], total + value[None, :], total)
    return total


@triton.jit
def _all_at_once(total, grad_y, indices, entry, first, col, start, rows, padding, COLS: tl.constexpr,
                 TOKENS: tl.constexpr, ENTRIES: tl.constexpr):  # fmt: skip
    """The sums with TOKENS rows: a product with a matrix of zeros and ones, exact but for the order of the terms."""
    row = start + tl.arange(0, TOKENS)
    index = tl.load(indices + row, mask=row < rows, other=-1)
    own = (index >= first) & (index < first + ENTRIES) & (index != padding) & (row < rows)
    if tl.max(own.to(tl.int32), 0) > 0:
        mask = own[:, None] & (col < COLS)[None, :]
        value = tl.load(grad_y + row.to(tl.int64)[:, None] * COLS + col[None, :], mask=mask, other=0.0)
        wide = value.to(tl.float32)
        if tl.max(tl.max((wide - wide != 0.0).to(tl.int32), 1), 0) > 0:
            total = _one_by_one(total, grad_y, indices, entry, col, start, rows, padding, COLS, TOKENS)
        else:
            chosen = (entry[:, None] == index[None, :]) & own[None, :]
            total += tl.dot(chosen.to(value.dtype), value, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["padding_idx", "rows"])
def embedding_backward(
    grad_weight, grad_y, indices, padding_idx, rows, VOCABULARY: tl.constexpr, COLS: tl.constexpr,
    ENTRIES: tl.constexpr, SCAN: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program sums BLOCK columns of ENTRIES entries of the vocabulary, always in the order of the rows.

    It looks through all indices, SCAN at a time, and reads the rows of its entries alone.
    """
    BLOCKS: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    first = tl.program_id(0) // BLOCKS * ENTRIES
    entry = first + tl.arange(0, ENTRIES)
    col = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    padding = tl.where(padding_idx < 0, padding_idx + VOCABULARY, padding_idx)
    total = tl.zeros([ENTRIES, BLOCK], tl.float32)
    for scan in range(0, rows, SCAN):
        row = scan + tl.arange(0, SCAN)
        index = tl.load(indices + row, mask=row < rows, other=-1)
        if tl.max(((index >= first) & (index < first + ENTRIES)).to(tl.int32), 0) > 0:
            for start in range(scan, tl.minimum(scan + SCAN, rows), TOKENS):
                total = _all_at_once(
                    total, grad_y, indices, entry, first, col, start, rows, padding, COLS, TOKENS, ENTRIES
                )
    mask = (entry < VOCABULARY)[:, None] & (col < COLS)[None, :]
    place = grad_weight + entry.to(tl.int64)[:, None] * COLS + col[None, :]
    tl.store(place, total.to(grad_weight.dtype.element_ty), mask=mask)

"""The gradient of an embedding from rows in the order of their indices."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _keys(indices, row, rows, VOCABULARY: tl.constexpr):
    """Numbers in the order of the indices and, where these are equal, of the rows; those beyond all rows are last."""
    index = tl.load(indices + row, mask=row < rows, other=VOCABULARY).to(tl.int64)
    # an index outside of the weight must not become one of its rows
    index = tl.minimum(tl.maximum(index, -1), VOCABULARY)
    return index * rows + row, index


@triton.jit(do_not_specialize=["rows"])
def rank_rows(
    order, sorted_indices, indices, rows, VOCABULARY: tl.constexpr, ROWS: tl.constexpr, SCAN: tl.constexpr
):  # fmt: skip
    """Writes ROWS rows, and their indices, to their places in the order: each has as many before it as its place."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    key, index = _keys(indices, row, rows, VOCABULARY)
    before = tl.zeros([ROWS, SCAN], tl.int32)
    for start in range(0, rows, SCAN):
        other, _ = _keys(indices, start + tl.arange(0, SCAN), rows, VOCABULARY)
        before += (other[None, :] < key[:, None]).to(tl.int32)
    place = tl.sum(before, 1)
    tl.store(order + place, row, mask=row < rows)
    tl.store(sorted_indices + place, index.to(tl.int32), mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def find_entries(first, sorted_indices, rows, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Writes for BLOCK entries the number of rows whose index is smaller, by bisection; VOCABULARY is one, too."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    smaller = tl.zeros([BLOCK], tl.int32)
    left = rows
    while left > 1:
        half = left // 2
        index = tl.load(sorted_indices + smaller + (half - 1))
        smaller = tl.where(index < entry, smaller + half, smaller)
        left -= half
    smaller += (tl.load(sorted_indices + smaller) < entry).to(tl.int32)
    tl.store(first + entry, smaller, mask=entry <= VOCABULARY)


@triton.jit
def _sum_of_rows(grad_y, order, begin, end, col, COLS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(begin, end, ROWS):
        place = start + tl.arange(0, ROWS)
        row = tl.load(order + place, mask=place < end, other=0).to(tl.int64)
        mask = (place < end)[:, None] & (col < COLS)[None, :]
        total += tl.load(grad_y + row[:, None] * COLS + col[None, :], mask=mask, other=0.0).to(tl.float32)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["padding_idx"])
def sum_entries(
    grad_weight, grad_y, order, first, padding_idx, VOCABULARY: tl.constexpr, COLS: tl.constexpr,
    ENTRIES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program writes BLOCK columns of ENTRIES entries of the vocabulary; most have no rows, and are zeros."""
    BLOCKS: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    entries = tl.program_id(0) // BLOCKS * ENTRIES
    col = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    padding = tl.where(padding_idx < 0, padding_idx + VOCABULARY, padding_idx)
    last = tl.minimum(entries + ENTRIES, VOCABULARY)
    if tl.load(first + entries) == tl.load(first + last):
        entry = entries + tl.arange(0, ENTRIES)
        place = grad_weight + entry.to(tl.int64)[:, None] * COLS + col[None, :]
        mask = (entry < last)[:, None] & (col < COLS)[None, :]
        tl.store(place, tl.zeros([ENTRIES, BLOCK], grad_weight.dtype.element_ty), mask=mask)
    else:
        for entry in range(entries, last):
            begin = tl.load(first + entry)
            end = tl.where(entry == padding, begin, tl.load(first + entry + 1))
            total = _sum_of_rows(grad_y, order, begin, end, col, COLS, ROWS, BLOCK)
            place = (tl.zeros([1], tl.int64) + entry) * COLS + col
            tl.store(grad_weight + place, total.to(grad_weight.dtype.element_ty), mask=col < COLS)

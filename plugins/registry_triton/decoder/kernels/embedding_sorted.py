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
def _add_rows(total, grad_y, order, begin, end, col, COLS: tl.constexpr, ROWS: tl.constexpr):
    """``total``, of ROWS partial sums a column, with the rows of these places in the order."""
    for start in range(begin, end, ROWS):
        place = start + tl.arange(0, ROWS)
        row = tl.load(order + place, mask=place < end, other=0).to(tl.int64)
        mask = (place < end)[:, None] & (col < COLS)[None, :]
        total += tl.load(grad_y + row[:, None] * COLS + col[None, :], mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _add_chunks(total, chunk_sums, begin, end, col, COLS: tl.constexpr, ROWS: tl.constexpr):
    """``total``, of ROWS partial sums a column, with the sums of these chunks."""
    for start in range(begin, end, ROWS):
        chunk = (start + tl.arange(0, ROWS)).to(tl.int64)
        mask = (chunk < end)[:, None] & (col < COLS)[None, :]
        total += tl.load(chunk_sums + chunk[:, None] * COLS + col[None, :], mask=mask, other=0.0)
    return total


@triton.jit(do_not_specialize=["rows"])
def sum_chunks(
    chunk_sums, grad_y, order, sorted_indices, rows, COLS: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program writes BLOCK columns of the sum of CHUNK rows in a row of the order, where all have one index."""
    BLOCKS: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    chunk = tl.program_id(0) // BLOCKS
    begin = chunk * CHUNK
    # of fewer rows than a chunk nothing is summed: what lies beyond the rows differs from any index
    index = tl.load(sorted_indices + begin)
    if index == tl.load(sorted_indices + begin + (CHUNK - 1), mask=begin + CHUNK <= rows, other=-2):
        col = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        total = _add_rows(total, grad_y, order, begin, begin + CHUNK, col, COLS, ROWS)
        tl.store(chunk_sums + chunk.to(tl.int64) * COLS + col, tl.sum(total, 0), mask=col < COLS)


@triton.jit(do_not_specialize=["padding_idx"])
def sum_entries(
    grad_weight, grad_y, order, first, chunk_sums, padding_idx, VOCABULARY: tl.constexpr, COLS: tl.constexpr,
    ENTRIES: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program writes BLOCK columns of ENTRIES entries of the vocabulary; most have no rows, and are zeros.

    Of an entry with many rows it adds those before and after the chunks that are the entry's, and the chunks' sums.
    """
    BLOCKS: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    entries = tl.program_id(0) // BLOCKS * ENTRIES
    col = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    padding = tl.where(padding_idx < 0, padding_idx + VOCABULARY, padding_idx)
    last = tl.minimum(entries + ENTRIES, VOCABULARY)
    if tl.load(first + entries) == tl.load(first + last):
        empty = entries + tl.arange(0, ENTRIES)
        zeros = grad_weight + empty.to(tl.int64)[:, None] * COLS + col[None, :]
        mask = (empty < last)[:, None] & (col < COLS)[None, :]
        tl.store(zeros, tl.zeros([ENTRIES, BLOCK], grad_weight.dtype.element_ty), mask=mask)
    else:
        for entry in range(entries, last):
            begin = tl.load(first + entry)
            end = tl.where(entry == padding, begin, tl.load(first + entry + 1))
            sums = grad_weight + (tl.zeros([1], tl.int64) + entry) * COLS + col
            # partial sums of the same columns are in several warps, which wait for one another to add them
            if begin == end:
                tl.store(sums, tl.zeros([BLOCK], grad_weight.dtype.element_ty), mask=col < COLS)
            else:
                chunk, chunk_end = (begin + (CHUNK - 1)) // CHUNK, end // CHUNK
                before = tl.where(chunk < chunk_end, chunk * CHUNK, end)
                after = tl.where(chunk < chunk_end, chunk_end * CHUNK, end)
                total = tl.zeros([ROWS, BLOCK], tl.float32)
                total = _add_rows(total, grad_y, order, begin, before, col, COLS, ROWS)
                total = _add_chunks(total, chunk_sums, chunk, chunk_end, col, COLS, ROWS)
                total = _add_rows(total, grad_y, order, after, end, col, COLS, ROWS)
                tl.store(sums, tl.sum(total, 0).to(grad_weight.dtype.element_ty), mask=col < COLS)

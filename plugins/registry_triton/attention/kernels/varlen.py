"""Attention of packed sequences in one pass over the keys of each: a tile of queries is of one sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import _pass
from .scores import LN2, keys_of


@triton.jit
def _sequence_of(tile, cu_seqlens_q, sequences, total_q, ROWS: tl.constexpr):
    """The sequence in whose share of the tiles a tile is: those from ``cu_seqlens_q[i] // ROWS + i`` on are i's.

    No sequence has more tiles with a row than that leaves it. A search by halves, of which the host knows no result.
    """
    low = 0
    high = sequences
    while high - low > 1:
        middle = low + (high - low) // 2
        begin = tl.minimum(tl.maximum(tl.load(cu_seqlens_q + middle), 0), total_q)
        if begin // ROWS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _bounds_of(offsets, sequence, total):
    """First token and end of a sequence, within the ``total`` tokens also where offsets are wrong."""
    begin = tl.minimum(tl.maximum(tl.load(offsets + sequence), 0), total)
    end = tl.minimum(tl.maximum(tl.load(offsets + sequence + 1), begin), total)
    return begin, end


@triton.jit(do_not_specialize=["tiles", "sequences", "total_q", "total_k"])
def attention_varlen(
    out, lse, q, k, v, cu_seqlens_q, cu_seqlens_k, scale, softcap, tiles, sequences, total_q, total_k, q_token, q_head,
    k_token, k_head, v_token, v_head, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has up to ROWS queries of one head and one sequence; ``tiles`` of them are a head's, some without any.

    ``out`` and ``lse`` are row-major. GROUP heads of queries share one of keys. WIDTH elements are a head, and
    SPAN >= WIDTH are read. Of causal programs the last tiles, which see most keys, run first, all heads of one beside
    each other; otherwise programs of a head are neighbours, so that the cache holds its keys.
    """
    program = tl.program_id(0)
    if CAUSAL:
        tile = tiles - 1 - program // HEADS
        head = program % HEADS
    else:
        tile = program % tiles
        head = program // tiles
    sequence = _sequence_of(tile, cu_seqlens_q, sequences, total_q, ROWS)
    q_begin, q_end = _bounds_of(cu_seqlens_q, sequence, total_q)
    k_begin, k_end = _bounds_of(cu_seqlens_k, sequence, total_k)
    q_len = q_end - q_begin
    kv_len = k_end - k_begin
    first = (tile - (q_begin // ROWS + sequence)) * ROWS
    if first < q_len:
        group = (head // GROUP).to(tl.int64)
        row = first + tl.arange(0, ROWS)
        col = tl.arange(0, SPAN)
        inside = (row < q_len)[:, None] & (col < WIDTH)[None, :]
        q += q_begin.to(tl.int64) * q_token + head.to(tl.int64) * q_head
        queries = tl.load(q + row.to(tl.int64)[:, None] * q_token + col[None, :], mask=inside, other=0.0)
        k += k_begin.to(tl.int64) * k_token + group * k_head
        v += k_begin.to(tl.int64) * v_token + group * v_head
        acc = tl.zeros([ROWS, SPAN], tl.float32)
        top = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        begin, full, over, end = keys_of(first, q_len, kv_len, CAUSAL, WINDOW, ROWS, KEYS)
        acc, top, total = _pass(
            acc, top, total, queries, k, v, q, row, full, over, over, 0, scale, softcap, k_token, v_token, 0, q_len,
            kv_len, False, CAUSAL, WINDOW, CAPPED, 0, WIDTH, SPAN, KEYS, PRECISION, STAGES,
        )  # fmt: skip
        acc, top, total = _pass(
            acc, top, total, queries, k, v, q, row, begin, end, full, over - full, scale, softcap, k_token, v_token, 0,
            q_len, kv_len, True, CAUSAL, WINDOW, CAPPED, 0, WIDTH, SPAN, KEYS, PRECISION, 1,
        )  # fmt: skip
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        place = q_begin.to(tl.int64) + row
        at = (place * HEADS + head)[:, None] * WIDTH + col[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)
        found = tl.where(total == 0.0, -float("inf"), top * LN2 + tl.log(total))
        tl.store(lse + head.to(tl.int64) * total_q + place, found, mask=row < q_len)

"""Attention in one pass over the keys (Dao, 2023): a tile of queries stays, tiles of keys and values go by."""

from __future__ import annotations

import triton
import triton.language as tl

from .scores import ADDITIVE, LN2, exponential, keys_of, scored


@triton.jit
def _pass(
    acc, top, total, queries, k, v, mask, row, begin, end, gap_at, gap, factor, softcap, k_token, v_token, mask_row,
    q_len, kv_len, EDGES: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    MASK: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add keys to the sums of a tile of queries: weighted values, greatest score, total weight.

    They are begin..end; with EDGES without those from ``gap_at`` on, so many that ``gap`` is their number.
    """
    col = tl.arange(0, SPAN)
    item = tl.arange(0, KEYS)
    for step in tl.range(begin, end - gap, KEYS, num_stages=STAGES):
        start = step
        if EDGES:
            start += tl.where(step >= gap_at, gap, 0)
        key = start + item
        there = key < kv_len
        place = tl.zeros([], tl.int64) + start
        k_at = (k + place * k_token) + (item[None, :] * k_token + col[:, None])
        v_at = (v + place * v_token) + (item[:, None] * v_token + col[None, :])
        if EDGES:
            keys = tl.load(k_at, mask=there[None, :] & (col < WIDTH)[:, None], other=0.0)
            values = tl.load(v_at, mask=there[:, None] & (col < WIDTH)[None, :], other=0.0)
        elif WIDTH < SPAN:
            keys = tl.load(k_at, mask=(col < WIDTH)[:, None], other=0.0)
            values = tl.load(v_at, mask=(col < WIDTH)[None, :], other=0.0)
        else:
            keys = tl.load(k_at)
            values = tl.load(v_at)
        products = tl.dot(queries, keys, input_precision=PRECISION)
        scores, _ = scored(
            products, factor, softcap, mask, row[:, None], key[None, :], mask_row, q_len, kv_len, EDGES, CAUSAL,
            WINDOW, CAPPED, MASK,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(scores, axis=1))
        base = new
        if EDGES or MASK != 0:
            # so that rows which have seen no key yet do not compute inf - inf
            base = tl.where(new == -float("inf"), 0.0, new)
        weights = exponential(scores, base[:, None], MASK)
        kept = exponential(top, base, MASK)
        total = total * kept + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(values.dtype), values, acc * kept[:, None], input_precision=PRECISION)
        top = new
    return acc, top, total


@triton.jit(do_not_specialize=["heads", "blocks", "q_len", "kv_len"])
def attention(
    out, lse, q, k, v, mask, scale, softcap, heads, blocks, q_len, kv_len, q_batch, q_token, q_head, k_batch, k_token,
    k_head, v_batch, v_token, v_head, mask_batch, mask_head, mask_row, HEADS: tl.constexpr, GROUP: tl.constexpr,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program has ROWS queries of one head; ``blocks`` of them are a head's. ``heads``: those of all batches.

    ``out`` is row-major. GROUP heads of queries share one of keys. WIDTH elements are a head, SPAN >= WIDTH are read.
    Causal programs with many keys run first, then those with fewer; otherwise programs of a head are neighbours, so
    that the cache holds its keys.
    """
    program = tl.program_id(0)
    if CAUSAL:
        block = blocks - 1 - program // heads
        flat = program % heads
    else:
        block = program % blocks
        flat = program // blocks
    batch = (flat // HEADS).to(tl.int64)
    head = flat % HEADS
    group = (head // GROUP).to(tl.int64)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    col = tl.arange(0, SPAN)
    inside = (row < q_len)[:, None] & (col < WIDTH)[None, :]
    q += batch * q_batch + head.to(tl.int64) * q_head
    queries = tl.load(q + row.to(tl.int64)[:, None] * q_token + col[None, :], mask=inside, other=0.0)
    k += batch * k_batch + group * k_head
    v += batch * v_batch + group * v_head
    if MASK != 0:
        mask += batch * mask_batch + head.to(tl.int64) * mask_head
    acc = tl.zeros([ROWS, SPAN], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    begin, full, over, end = keys_of(first, q_len, kv_len, CAUSAL, WINDOW, ROWS, KEYS)
    acc, top, total = _pass(
        acc, top, total, queries, k, v, mask, row, full, over, over, 0, scale, softcap, k_token, v_token, mask_row,
        q_len, kv_len, False, CAUSAL, WINDOW, CAPPED, MASK, WIDTH, SPAN, KEYS, PRECISION, STAGES,
    )  # fmt: skip
    acc, top, total = _pass(
        acc, top, total, queries, k, v, mask, row, begin, end, full, over - full, scale, softcap, k_token, v_token,
        mask_row, q_len, kv_len, True, CAUSAL, WINDOW, CAPPED, MASK, WIDTH, SPAN, KEYS, PRECISION, 1,
    )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    place = (batch * q_len + row) * HEADS + head
    tl.store(out + place[:, None] * WIDTH + col[None, :], acc.to(out.dtype.element_ty), mask=inside)
    if MASK != ADDITIVE:
        top *= LN2
    found = tl.where(total == 0.0, -float("inf"), top + tl.log(total))
    tl.store(lse + flat.to(tl.int64) * q_len + row, found, mask=row < q_len)

"""Latent attention of one token of each sequence to a cache: heads are the rows of a tile, and share what is read."""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import _chunk, _store

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _query(q, q_head, tile, HEADS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr):
    """DIM neighbouring elements of a tile of heads, [ROWS, SPAN]; 0 behind them."""
    head = tile * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, SPAN)
    own = head < HEADS
    return tl.load(q + head[:, None] * q_head + col[None, :], mask=own[:, None] & (col < DIM)[None, :], other=0.0)


@triton.jit
def _places(cache, table, start, end, outer, slot, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """The first latent of a step, where each of the step is behind it, and which of them are there.

    Places are of 32 bits, and the same in each step, where a step is within a page or there are none: 64 bits for each
    would take registers that the sums need.
    """
    own = tl.arange(0, BLOCK)
    inside = start + own < end
    if PAGE == 0:
        return cache + (start + tl.zeros([], tl.int64)) * slot, own * slot, inside
    elif PAGE % BLOCK == 0:
        block = tl.load(table + start // PAGE).to(tl.int64)
        return cache + block * outer + (start % PAGE) * slot, own * slot, inside
    else:
        key = start + own
        block = tl.load(table + key // PAGE, mask=inside, other=0).to(tl.int64)
        return cache, block * outer + (key % PAGE) * slot, inside


@triton.jit
def _walk(
    latent_query, rope_query, cache, table, begin, end, factor, outer, slot, RANK: tl.constexpr, SPAN: tl.constexpr,
    ROPE: tl.constexpr, ROPE_SPAN: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weighted sums [ROWS, SPAN], sums of weights and their base, in fp32, of tokens begin to end.

    A latent is read once, for the logits and as the value. Weights are ``2 ** (logit - base)``, the base at most the
    largest logit: in float16 the largest weight is 2 ** 15, so that smaller ones remain normal numbers.
    """
    SHIFT: tl.constexpr = 15.0 if latent_query.dtype == tl.float16 else 0.0
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, SPAN], tl.float32)
    col = tl.arange(0, SPAN)
    rope_col = tl.arange(0, ROPE_SPAN)
    for start in range(begin, end, BLOCK):
        first, place, inside = _places(cache, table, start, end, outer, slot, PAGE, BLOCK)
        there = inside[:, None]
        rope_there = inside[:, None]
        if RANK < SPAN:
            there = there & (col < RANK)[None, :]
        if ROPE < ROPE_SPAN:
            rope_there = rope_there & (rope_col < ROPE)[None, :]
        latents = tl.load(first + place[:, None] + col[None, :], mask=there, other=0.0)
        ropes = tl.load(first + place[:, None] + (RANK + rope_col)[None, :], mask=rope_there, other=0.0)
        logit = tl.dot(latent_query, tl.trans(latents), input_precision="ieee")
        logit = tl.dot(rope_query, tl.trans(ropes), logit, input_precision="ieee")
        logit = tl.where(inside[None, :], logit * (factor * LOG2E), -float("inf"))
        new = tl.maximum(top, tl.max(logit, 1))
        # where all logits are -inf so far, -inf - -inf would be NaN
        base = tl.where(new == -float("inf"), 0.0, new)
        weight = tl.exp2(logit - (base - SHIFT)[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weight, 1)
        out = tl.dot(weight.to(latents.dtype), latents, out * shrink[:, None], input_precision="ieee")
        top = new
    return out, total, top - SHIFT


@triton.jit(do_not_specialize=["table_row"])
def whole_mla_decode(
    out, lse, q, kv_cache, kv_lens, block_table, scale, q_outer, q_head, outer, slot, table_row, HEADS: tl.constexpr,
    RANK: tl.constexpr, SPAN: tl.constexpr, ROPE: tl.constexpr, ROPE_SPAN: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program walks all tokens of a sequence, for ROWS heads. Tiles of a sequence are neighbours: they share L2."""
    TILES: tl.constexpr = (HEADS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    tile, batch = program % TILES, program // TILES
    own_q = q + batch.to(tl.int64) * q_outer
    latent_query = _query(own_q, q_head, tile, HEADS, RANK, SPAN, ROWS)
    rope_query = _query(own_q + RANK, q_head, tile, HEADS, ROPE, ROPE_SPAN, ROWS)
    length = tl.load(kv_lens + batch)
    cache, table = kv_cache, block_table
    if PAGE > 0:
        table += batch.to(tl.int64) * table_row
    else:
        cache += batch.to(tl.int64) * outer
    sums, total, top = _walk(
        latent_query, rope_query, cache, table, 0, length, scale, outer, slot, RANK, SPAN, ROPE, ROPE_SPAN, PAGE, ROWS,
        BLOCK,
    )  # fmt: skip
    head = tile * ROWS + tl.arange(0, ROWS)
    token = tl.zeros([ROWS], tl.int32)
    _store(out, lse, batch, head, token, head < HEADS, sums, total, top, 1.0, HEADS, 1, RANK, SPAN)


@triton.jit(do_not_specialize=["table_row", "splits", "keys"])
def partial_mla_decode(
    parts, tops, totals, q, kv_cache, kv_lens, block_table, scale, q_outer, q_head, outer, slot, table_row, splits,
    keys, HEADS: tl.constexpr, RANK: tl.constexpr, SPAN: tl.constexpr, ROPE: tl.constexpr, ROPE_SPAN: tl.constexpr,
    PAGE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """First of two launches: a part of a sequence's tokens. A part that is empty writes nothing.

    ``parts`` [batch, HEADS, splits, SPAN], ``tops`` and ``totals`` without the last dimension. DEPENDENT: programs of
    the second launch may take their places when all of this one have begun. ``keys`` is a multiple of BLOCK.
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    TILES: tl.constexpr = (HEADS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    tile, split, batch = program % TILES, program // TILES % splits, program // (TILES * splits)
    # before the length is known: the loads wait together
    own_q = q + batch.to(tl.int64) * q_outer
    latent_query = _query(own_q, q_head, tile, HEADS, RANK, SPAN, ROWS)
    rope_query = _query(own_q + RANK, q_head, tile, HEADS, ROPE, ROPE_SPAN, ROWS)
    length = tl.load(kv_lens + batch)
    chunk = _chunk(length, 0, splits, keys)
    begin = split * chunk
    end = tl.minimum(begin + chunk, length)
    if begin < end:
        cache, table = kv_cache, block_table
        if PAGE > 0:
            table += batch.to(tl.int64) * table_row
        else:
            cache += batch.to(tl.int64) * outer
        sums, total, top = _walk(
            latent_query, rope_query, cache, table, begin, end, scale, outer, slot, RANK, SPAN, ROPE, ROPE_SPAN, PAGE,
            ROWS, BLOCK,
        )  # fmt: skip
        head = tile * ROWS + tl.arange(0, ROWS)
        col = tl.arange(0, SPAN)
        place = (batch.to(tl.int64) * HEADS + head) * splits + split
        own = head < HEADS
        tl.store(parts + place[:, None] * SPAN + col[None, :], sums, mask=own[:, None])
        tl.store(tops + place, top, mask=own)
        tl.store(totals + place, total, mask=own)

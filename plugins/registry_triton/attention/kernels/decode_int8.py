"""Attention of a few tokens to a cache of int8, whose levels are multiplied in float16, or with float32 in that."""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import _chunk, _first_key, _logits, _number, _query, _store


@triton.jit
def _as_float(levels, DTYPE: tl.constexpr, PTX: tl.constexpr, KEPT: tl.constexpr):
    """Levels in the dtype of products. With PTX four become float16 in five instructions.

    A byte with its sign bit flipped, as the lowest one of a float16 of 1024 to 2047, is 1152 more than its level.
    Triton converts after it has brought bytes to the threads that multiply them: of values one byte a load, since
    neighbouring keys are not neighbours in memory. KEPT: it does not move the instructions, which are said to have
    effects, and so the bytes are converted in rows, and come as pairs of float16 from shared memory.
    """
    if PTX and tl.float16 == DTYPE:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 bytes, low, high, bias; xor.b32 bytes, $2, 0x80808080; mov.b32 bias, 0x64806480;"
            " prmt.b32 low, bytes, 0x64646464, 0x5150; prmt.b32 high, bytes, 0x64646464, 0x5352;"
            " sub.f16x2 $0, low, bias; sub.f16x2 $1, high, bias; }",
            "=r,=r,r", [levels], dtype=tl.float16, is_pure=not KEPT, pack=4,
        )  # fmt: skip
    else:
        return levels.to(DTYPE)


@triton.jit
def _walk_levels(
    query, k, v, table, position, begin, end, factor, cap, k_outer, k_slot, v_outer, v_slot, DIM: tl.constexpr,
    SPAN: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PTX: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weighted sums [ROWS, SPAN] of levels, sums of weights and their base, in fp32, of keys begin to end.

    ``k`` and ``v`` point to the first key of a head, or with pages to the head in the first page. Weights are
    ``2 ** (logit - base)``, the base at most the largest logit: in float16 the largest weight is 2 ** 15, so that
    smaller ones remain normal numbers.
    """
    SHIFT: tl.constexpr = 15.0 if query.dtype == tl.float16 else 0.0
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, SPAN], tl.float32)
    col = tl.arange(0, SPAN)
    for start in range(begin, end, BLOCK):
        key = start + tl.arange(0, BLOCK)
        inside = key < end
        if PAGE > 0:
            block = tl.load(table + key // PAGE, mask=inside, other=0).to(tl.int64)
            slot = key % PAGE
            k_row = block * k_outer + slot * k_slot
            v_row = block * v_outer + slot * v_slot
        else:
            k_row = key.to(tl.int64) * k_slot
            v_row = key.to(tl.int64) * v_slot
        there = inside[:, None]
        if DIM < SPAN:
            there = there & (col < DIM)[None, :]
        levels = tl.load(k + k_row[:, None] + col[None, :], mask=there, other=0)
        keys = _as_float(levels, query.dtype, PTX, False)
        levels = tl.load(v + v_row[:, None] + col[None, :], mask=there, other=0)
        values = _as_float(levels, query.dtype, PTX, True)
        logit = _logits(query, keys, key, inside, position, factor, cap, WINDOW, SOFTCAP)
        new = tl.maximum(top, tl.max(logit, 1))
        # where a row has not seen a key yet, -inf - -inf would be NaN
        base = tl.where(new == -float("inf"), 0.0, new)
        weight = tl.exp2(logit - (base - SHIFT)[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weight, 1)
        out = out * shrink[:, None] + tl.dot(weight.to(query.dtype), values, input_precision="ieee")
        top = new
    return out, total, top - SHIFT


@triton.jit(do_not_specialize=["table_row"])
def whole_decode_int8(
    out, lse, q, k_cache, v_cache, kv_lens, block_table, k_scale, v_scale, scale, softcap, q_outer, q_token, q_head,
    k_outer, k_slot, k_head, v_outer, v_slot, v_head, table_row, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    TOKENS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, PTX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program walks all keys of a sequence and a head, for ROWS rows of queries; bfloat16 rows become float16."""
    TILES: tl.constexpr = (GROUP * TOKENS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    tile, kv_head, batch = program % TILES, program // TILES % KV_HEADS, program // (TILES * KV_HEADS)
    own_q = q + batch.to(tl.int64) * q_outer + kv_head * GROUP * q_head
    query, factor, row, own = _query(
        own_q, scale, k_scale, q_token, q_head, tile, GROUP, TOKENS, DIM, SPAN, "int8", ROWS
    )
    length = tl.load(kv_lens + batch)
    k, v, table = k_cache + kv_head.to(tl.int64) * k_head, v_cache + kv_head.to(tl.int64) * v_head, block_table
    if PAGE > 0:
        table += batch.to(tl.int64) * table_row
    else:
        k += batch.to(tl.int64) * k_outer
        v += batch.to(tl.int64) * v_outer
    token = row // GROUP
    sums, total, top = _walk_levels(
        query, k, v, table, length - TOKENS + token, _first_key(length, WINDOW, TOKENS), length, factor, softcap,
        k_outer, k_slot, v_outer, v_slot, DIM, SPAN, PAGE, WINDOW, SOFTCAP, PTX, ROWS, BLOCK,
    )  # fmt: skip
    head = kv_head * GROUP + row % GROUP
    _store(out, lse, batch, head, token, own, sums, total, top, _number(v_scale), KV_HEADS * GROUP, TOKENS, DIM, SPAN)


@triton.jit(do_not_specialize=["table_row", "splits", "keys"])
def partial_decode_int8(
    parts, tops, totals, q, k_cache, v_cache, kv_lens, block_table, k_scale, scale, softcap, q_outer, q_token, q_head,
    k_outer, k_slot, k_head, v_outer, v_slot, v_head, table_row, splits, keys, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PTX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """First of two launches: a part of a sequence's keys. A part that is empty writes nothing.

    ``parts`` [batch, kv_heads, GROUP * TOKENS, splits, SPAN], ``tops`` and ``totals`` without the last dimension.
    DEPENDENT: programs of the second launch may take their places when all of this one have begun.
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    TILES: tl.constexpr = (GROUP * TOKENS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    tile, split, group = program % TILES, program // TILES % splits, program // (TILES * splits)
    kv_head, batch = group % KV_HEADS, group // KV_HEADS
    # before the length is known: the two loads wait together
    own_q = q + batch.to(tl.int64) * q_outer + kv_head * GROUP * q_head
    query, factor, row, own = _query(
        own_q, scale, k_scale, q_token, q_head, tile, GROUP, TOKENS, DIM, SPAN, "int8", ROWS
    )
    length = tl.load(kv_lens + batch)
    first = _first_key(length, WINDOW, TOKENS)
    chunk = _chunk(length, first, splits, keys)
    begin = first + split * chunk
    end = tl.minimum(begin + chunk, length)
    if begin < end:
        k, v, table = k_cache + kv_head.to(tl.int64) * k_head, v_cache + kv_head.to(tl.int64) * v_head, block_table
        if PAGE > 0:
            table += batch.to(tl.int64) * table_row
        else:
            k += batch.to(tl.int64) * k_outer
            v += batch.to(tl.int64) * v_outer
        sums, total, top = _walk_levels(
            query, k, v, table, length - TOKENS + row // GROUP, begin, end, factor, softcap, k_outer, k_slot, v_outer,
            v_slot, DIM, SPAN, PAGE, WINDOW, SOFTCAP, PTX, ROWS, BLOCK,
        )  # fmt: skip
        col = tl.arange(0, SPAN)
        place = (group.to(tl.int64) * (GROUP * TOKENS) + row) * splits + split
        tl.store(parts + place[:, None] * SPAN + col[None, :], sums, mask=own[:, None])
        tl.store(tops + place, top, mask=own)
        tl.store(totals + place, total, mask=own)

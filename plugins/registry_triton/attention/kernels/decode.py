"""Attention of a few tokens to a cache: the heads of a group and their tokens are the rows of one tile."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _capped(logit, cap):
    """``cap * tanh(logit / cap)``, by one exponential of a number of at most 0."""
    ratio = logit / cap
    power = tl.exp2(tl.abs(ratio) * (-2.0 * LOG2E))
    size = cap * ((1.0 - power) / (1.0 + power))
    return tl.where(ratio < 0.0, -size, size)


@triton.jit
def _as_wide(cells, DTYPE: tl.constexpr, FLOAT8: tl.constexpr):
    """Elements of a cache in the dtype of products. FLOAT8 "bits": where a conversion makes NaN a number."""
    wide = cells.to(DTYPE)
    if FLOAT8 == "bits":
        wide = tl.where((cells.to(tl.uint8, bitcast=True) & 0x7F) == 0x7F, float("nan"), wide).to(DTYPE)
    return wide


@triton.jit
def _values(cells, DTYPE: tl.constexpr, FLOAT8: tl.constexpr):
    """Values in the dtype of products, for a product whose pairs are of neighbouring keys.

    Triton converts float8 after it has brought the bytes to the threads that multiply them: one byte a load, since
    neighbouring keys are not neighbours in memory. It does not move an instruction that is said to have effects, and
    so values are converted in rows, and come as pairs of float16 from shared memory.
    """
    if tl.float16 == DTYPE and FLOAT8 == "ptx":
        return tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2;"
            " cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }",
            "=r,=r,r", [cells.to(tl.uint8, bitcast=True)], dtype=tl.float16, is_pure=False, pack=4,
        )  # fmt: skip
    else:
        return _as_wide(cells, DTYPE, FLOAT8)


@triton.jit
def _in_half(query):
    """Rows of bfloat16 as float16 of at most 2 ** 15, and the power of two that each was divided by.

    float8 becomes float16 in one instruction and bfloat16 in two, of which the second is a quarter as fast. Elements
    below 2 ** -29 of their row's largest lose bits.
    """
    wide = query.to(tl.float32)
    exponent = tl.maximum(tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) >> 23, 15)
    factor = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    unit = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    return (wide * factor[:, None]).to(tl.float16), unit


@triton.jit
def _logits(query, keys, key, inside, position, factor, cap, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr):
    """Logits [rows, keys] in base 2, -inf where a row does not see a key; ``factor`` is a number or [rows, 1]."""
    logit = tl.dot(query, tl.trans(keys), input_precision="ieee") * factor
    if SOFTCAP:
        logit = _capped(logit, cap)
    seen = inside[None, :] & (key[None, :] <= position[:, None])
    if WINDOW >= 0:
        seen &= key[None, :] >= position[:, None] - WINDOW
    return tl.where(seen, logit * LOG2E, -float("inf"))


@triton.jit
def _walk(
    query, k, v, table, position, begin, end, factor, cap, k_outer, k_slot, v_outer, v_slot, DIM: tl.constexpr,
    SPAN: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, FLOAT8: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weighted sums [ROWS, SPAN], sums of weights and their base, in fp32, of keys begin to end.

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
        keys = _as_wide(tl.load(k + k_row[:, None] + col[None, :], mask=there, other=0.0), query.dtype, FLOAT8)
        values = _values(tl.load(v + v_row[:, None] + col[None, :], mask=there, other=0.0), query.dtype, FLOAT8)
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


@triton.jit
def _query(
    q, scale, k_scale, q_token, q_head, tile, GROUP: tl.constexpr, TOKENS: tl.constexpr, DIM: tl.constexpr,
    SPAN: tl.constexpr, FLOAT8: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile [ROWS, SPAN] of a group's rows, token by token, the factor of its logits, its rows, and if they are there.

    The factor, of the scale of logits and that of float8 keys, is a number or [ROWS, 1].
    """
    row = tile * ROWS + tl.arange(0, ROWS)
    token, head = row // GROUP, row % GROUP
    col = tl.arange(0, SPAN)
    own = row < GROUP * TOKENS
    place = q + token.to(tl.int64)[:, None] * q_token + head[:, None] * q_head + col[None, :]
    query = tl.load(place, mask=own[:, None] & (col < DIM)[None, :], other=0.0)
    if scale is not None:
        factor = scale
    else:
        factor = 1.0 / tl.sqrt(tl.full([], DIM, tl.float32))
    if k_scale is not None:
        factor = factor * tl.load(k_scale)
    if FLOAT8 != "" and query.dtype == tl.bfloat16:
        query, unit = _in_half(query)
        factor = (unit * factor)[:, None]
    return query, factor, row, own


@triton.jit
def _first_key(length, WINDOW: tl.constexpr, TOKENS: tl.constexpr):
    """The first key that some token of a sequence sees."""
    if WINDOW >= 0:
        return tl.maximum(length - TOKENS - WINDOW, 0)
    return 0


@triton.jit
def _chunk(length, first, splits, keys):
    """Keys of each of at most ``splits`` parts of a sequence: a multiple of ``keys``, and at least 1."""
    return tl.maximum(tl.cdiv(length - first, splits * keys), 1) * keys


@triton.jit
def _number(pointer):
    """The number of a scale, 1 without one."""
    if pointer is not None:
        return tl.load(pointer)
    else:
        return 1.0


@triton.jit
def _store(
    out, lse, batch, head, token, own, sums, total, top, v_scale, HEADS: tl.constexpr, TOKENS: tl.constexpr,
    DIM: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Write rows of the results: 0 and -inf for one that has seen no key. ``v_scale`` is a number."""
    col = tl.arange(0, SPAN)
    none = total == 0.0
    share = sums / tl.where(none, 1.0, total)[:, None] * v_scale
    row = (batch.to(tl.int64) * TOKENS + token) * HEADS + head
    place = out + row[:, None] * DIM + col[None, :]
    tl.store(place, share.to(out.dtype.element_ty), mask=own[:, None] & (col < DIM)[None, :])
    logarithm = tl.where(none, -float("inf"), (top + tl.log2(tl.where(none, 1.0, total))) * LN2)
    tl.store(lse + (batch.to(tl.int64) * HEADS + head) * TOKENS + token, logarithm, mask=own)


@triton.jit(do_not_specialize=["table_row"])
def whole_decode(
    out, lse, q, k_cache, v_cache, kv_lens, block_table, k_scale, v_scale, scale, softcap, q_outer, q_token, q_head,
    k_outer, k_slot, k_head, v_outer, v_slot, v_head, table_row, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    TOKENS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, FLOAT8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program walks all keys of a sequence and a head, for ROWS rows of queries."""
    TILES: tl.constexpr = (GROUP * TOKENS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    tile, kv_head, batch = program % TILES, program // TILES % KV_HEADS, program // (TILES * KV_HEADS)
    own_q = q + batch.to(tl.int64) * q_outer + kv_head * GROUP * q_head
    query, factor, row, own = _query(
        own_q, scale, k_scale, q_token, q_head, tile, GROUP, TOKENS, DIM, SPAN, FLOAT8, ROWS
    )
    length = tl.load(kv_lens + batch)
    k, v, table = k_cache + kv_head.to(tl.int64) * k_head, v_cache + kv_head.to(tl.int64) * v_head, block_table
    if PAGE > 0:
        table += batch.to(tl.int64) * table_row
    else:
        k += batch.to(tl.int64) * k_outer
        v += batch.to(tl.int64) * v_outer
    token = row // GROUP
    sums, total, top = _walk(
        query, k, v, table, length - TOKENS + token, _first_key(length, WINDOW, TOKENS), length, factor, softcap,
        k_outer, k_slot, v_outer, v_slot, DIM, SPAN, PAGE, WINDOW, SOFTCAP, FLOAT8, ROWS, BLOCK,
    )  # fmt: skip
    head = kv_head * GROUP + row % GROUP
    _store(out, lse, batch, head, token, own, sums, total, top, _number(v_scale), KV_HEADS * GROUP, TOKENS, DIM, SPAN)


@triton.jit(do_not_specialize=["table_row", "splits", "keys"])
def partial_decode(
    parts, tops, totals, q, k_cache, v_cache, kv_lens, block_table, k_scale, scale, softcap, q_outer, q_token, q_head,
    k_outer, k_slot, k_head, v_outer, v_slot, v_head, table_row, splits, keys, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, FLOAT8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
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
        own_q, scale, k_scale, q_token, q_head, tile, GROUP, TOKENS, DIM, SPAN, FLOAT8, ROWS
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
        sums, total, top = _walk(
            query, k, v, table, length - TOKENS + row // GROUP, begin, end, factor, softcap, k_outer, k_slot, v_outer,
            v_slot, DIM, SPAN, PAGE, WINDOW, SOFTCAP, FLOAT8, ROWS, BLOCK,
        )  # fmt: skip
        col = tl.arange(0, SPAN)
        place = (group.to(tl.int64) * (GROUP * TOKENS) + row) * splits + split
        tl.store(parts + place[:, None] * SPAN + col[None, :], sums, mask=own[:, None])
        tl.store(tops + place, top, mask=own)
        tl.store(totals + place, total, mask=own)


@triton.jit(do_not_specialize=["splits", "keys"])
def combine_decode(
    out, lse, parts, tops, totals, kv_lens, v_scale, splits, keys, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    TOKENS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, WINDOW: tl.constexpr, PARTS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Second launch: a row a program, PARTS parts a step, always in the same order.

    DEPENDENT: it is launched before the first has ended, and waits for its results.
    """
    program = tl.program_id(0).to(tl.int64)
    row, group = (program % (GROUP * TOKENS)).to(tl.int32), program // (GROUP * TOKENS)
    kv_head, batch = (group % KV_HEADS).to(tl.int32), group // KV_HEADS
    length, factor = tl.load(kv_lens + batch), _number(v_scale)
    first = _first_key(length, WINDOW, TOKENS)
    chunk = _chunk(length, first, splits, keys)
    filled = tl.cdiv(length - first, chunk)
    top = tl.full([1], -float("inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([1, SPAN], tl.float32)
    col = tl.arange(0, SPAN)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    for start in range(0, filled, PARTS):
        part = start + tl.arange(0, PARTS)
        place = program * splits + part
        there = part < filled
        each = tl.load(tops + place, mask=there, other=-float("inf"))
        weights = tl.load(totals + place, mask=there, other=0.0)
        rows = tl.load(parts + place[:, None] * SPAN + col[None, :], mask=there[:, None], other=0.0)
        new = tl.maximum(top, tl.max(each, 0))
        base = tl.where(new == -float("inf"), 0.0, new)
        share = tl.exp2(each - base)
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(share * weights, 0)
        sums = sums * shrink[:, None] + tl.sum(share[:, None] * rows, 0)[None, :]
        top = new
    alone = tl.zeros([1], tl.int32)
    head, token = kv_head * GROUP + row % GROUP, row // GROUP
    _store(
        out, lse, batch, head + alone, token + alone, alone == 0, sums, total, top, factor, KV_HEADS * GROUP, TOKENS,
        DIM, SPAN,
    )  # fmt: skip

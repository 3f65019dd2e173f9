"""Scores of a tile of queries and keys, and which keys a tile of queries sees.

A score is a logit in units of the base-2 exponential, so that one product serves scale and exponential. With an
additive mask it is the logit itself: a mask may hold the lowest number, which must not overflow.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
# kinds of masks
BOOL: tl.constexpr = tl.constexpr(1)
ADDITIVE: tl.constexpr = tl.constexpr(2)


@triton.jit
def _tanh(x):
    # exp2 of a large number is inf, of which the quotient is 0
    return 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))


@triton.jit
def exponential(scores, top, MASK: tl.constexpr):
    """exp of the difference of logits, by their scores."""
    if MASK == ADDITIVE:
        return tl.exp2((scores - top) * LOG2E)
    return tl.exp2(scores - top)


@triton.jit
def score_of(lse, MASK: tl.constexpr):
    """A log-sum-exp as a score; 0 for a row that sees no key, whose scores are -inf."""
    lse = tl.where(lse == -float("inf"), 0.0, lse)
    if MASK == ADDITIVE:
        return lse
    return lse * LOG2E


@triton.jit
def scored(
    products, factor, softcap, mask, row, key, mask_row, q_len, kv_len, EDGES: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Scores and slopes of the soft cap (ones without) of a tile, from the products of its queries and keys.

    ``row`` and ``key`` are places that broadcast to the tile's shape; ``mask`` points to the mask of the head. With
    EDGES some keys of the tile may not be seen for their place, or are not there.
    """
    unit: tl.constexpr = 1.0 if MASK == ADDITIVE else LOG2E
    slopes = 1.0
    if CAPPED:
        capped = _tanh(products * (factor / softcap))
        slopes = 1.0 - capped * capped
        scores = capped * (softcap * unit)
    else:
        scores = products * (factor * unit)
    if MASK != 0:
        there = (row < q_len) & (key < kv_len)
        value = tl.load(mask + row.to(tl.int64) * mask_row + key, mask=there, other=0)
        if MASK == ADDITIVE:
            scores += value.to(tl.float32)
        else:
            scores = tl.where(value != 0, scores, -float("inf"))
    if EDGES:
        after = key - (row + (kv_len - q_len))
        seen = key < kv_len
        if CAUSAL:
            seen = seen & (after <= 0)
        elif WINDOW >= 0:
            seen = seen & (after <= WINDOW)
        if WINDOW >= 0:
            seen = seen & (after >= -WINDOW)
        scores = tl.where(seen, scores, -float("inf"))
    return scores, slopes


@triton.jit
def keys_of(first, q_len, kv_len, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Keys that some of ROWS queries from ``first`` on see, and among them those that all see: begin, full, over, end.

    begin, full and over are multiples of KEYS. Keys from full to over are seen by all rows, for their place.
    """
    own = first + (kv_len - q_len)
    last = tl.minimum(first + ROWS, q_len) - 1 + (kv_len - q_len)
    begin = 0
    full = 0
    end = kv_len
    over = kv_len
    if CAUSAL:
        end = tl.minimum(kv_len, last + 1)
        over = tl.minimum(kv_len, own + 1)
    elif WINDOW >= 0:
        end = tl.minimum(kv_len, last + WINDOW + 1)
        over = tl.minimum(kv_len, own + WINDOW + 1)
    if WINDOW >= 0:
        begin = tl.maximum(own - WINDOW, 0) // KEYS * KEYS
        full = tl.cdiv(tl.maximum(last - WINDOW, 0), KEYS) * KEYS
    end = tl.maximum(end, begin)
    over = tl.maximum(over, 0) // KEYS * KEYS
    over = tl.maximum(over, begin)
    full = tl.minimum(tl.maximum(full, begin), over)
    return begin, full, over, end


@triton.jit
def rows_of(first, q_len, kv_len, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Queries that see some of KEYS keys from ``first`` on, and among them those that see all: begin, full, over, end.

    begin, full and over are multiples of ROWS. Rows from full to over see all keys, for their place.
    """
    shift = kv_len - q_len
    last = tl.minimum(first + KEYS, kv_len) - 1
    begin = 0
    full = 0
    end = q_len
    over = q_len
    if CAUSAL:
        begin = tl.maximum(first - shift, 0) // ROWS * ROWS
        full = tl.cdiv(tl.maximum(last - shift, 0), ROWS) * ROWS
    elif WINDOW >= 0:
        begin = tl.maximum(first - shift - WINDOW, 0) // ROWS * ROWS
        full = tl.cdiv(tl.maximum(last - shift - WINDOW, 0), ROWS) * ROWS
    if WINDOW >= 0:
        end = tl.minimum(q_len, last - shift + WINDOW + 1)
        over = tl.minimum(q_len, first - shift + WINDOW + 1)
    end = tl.maximum(end, begin)
    over = tl.maximum(over, 0) // ROWS * ROWS
    if last >= first + KEYS - 1:
        over = tl.maximum(over, begin)
    else:
        # the last keys are not all there
        over = begin
    full = tl.minimum(tl.maximum(full, begin), over)
    return begin, full, over, end

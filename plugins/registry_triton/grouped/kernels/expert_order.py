"""Pairs of a token and one of its experts in the order of the experts, and each token's sum over its pairs.

Pair ``token * TOP_K + place`` is of ``topk_ids[token, place]``. An id that is no expert has no place in the order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["PAIRS"])
def sort_pairs(order, offsets, topk_ids, PAIRS, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """order[offsets[e] : offsets[e + 1]] = the pairs of expert e, ascending; program e finds them.

    Every program reads all ids, twice: first what precedes its expert, then its own. Nothing is added atomically, so
    that the order is always the same.
    """
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    for start in range(0, PAIRS, BLOCK):
        found = tl.load(topk_ids + start + lane, mask=start + lane < PAIRS, other=-1)
        before += ((found >= 0) & (found < expert)).to(tl.int32)
    place = tl.sum(before, 0)
    tl.store(offsets + expert, place)
    for start in range(0, PAIRS, BLOCK):
        pair = start + lane
        found = tl.load(topk_ids + pair, mask=pair < PAIRS, other=-1)
        mine = found == expert
        count = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(order + place + count - 1, pair, mask=mine)
        place += tl.sum(mine.to(tl.int32), 0)
    if expert == EXPERTS - 1:
        tl.store(offsets + EXPERTS, place)


@triton.jit
def sum_pairs(y, parts, topk_ids, HIDDEN, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y[token] = the sum of the token's rows of parts [pairs, HIDDEN], in fp32, rounded once; program (token, cols)."""
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        pair = token * TOP_K + place
        expert = tl.load(topk_ids + pair)
        cols = tl.where((expert >= 0) & (expert < EXPERTS), HIDDEN, 0)
        part = tl.load(parts + pair * HIDDEN + col, mask=col < cols, other=0.0)
        total += part.to(tl.float32)
    tl.store(y + token * HIDDEN + col, total.to(y.dtype.element_ty), mask=col < HIDDEN)

"""Attention in one pass over the keys, of tiles that TMA copies (Dao, 2023; Shah et al., 2024: FlashAttention 3).

Specialised, one group of four warps copies tiles, and two groups compute, each with half of the rows. Triton's compiler
makes the groups (3.6 to 3.9, for compute capability 9.0) where one loop passes over the keys, has no branch, and
multiplies tiles of descriptors alone; two loops, or a loop with a branch, end in a fault or in one group. Descriptors
have two dimensions: Triton 3.6 halves a tile of four dimensions along the wrong one, and copies too much.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .scores import LN2, LOG2E


@triton.jit
def _place_of(begin, mine, blocks, programs):
    """The block of turn ``begin // programs`` of program ``mine`` of a head, the last ones first; ``blocks`` for none.

    Every other turn goes the other way, so that two turns of a program have as many keys as those of any other.
    """
    back = (begin // programs) % 2 == 1
    place = begin + tl.where(back, programs - 1 - mine, mine)
    return tl.where(place < blocks, blocks - 1 - place, blocks)


@triton.jit
def _keys_of(first, q_len, kv_len, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Keys that some of ROWS queries from ``first`` on see: begin, a multiple of KEYS, and end; none if no row is."""
    shift = kv_len - q_len
    begin = 0
    end = kv_len
    if CAUSAL:
        end = tl.minimum(kv_len, tl.minimum(first + ROWS, q_len) + shift)
    elif WINDOW >= 0:
        end = tl.minimum(kv_len, tl.minimum(first + ROWS, q_len) + shift + WINDOW)
    if WINDOW >= 0:
        begin = tl.maximum(first + shift - WINDOW, 0) // KEYS * KEYS
    return begin, tl.where(first < q_len, end, 0)


@triton.jit
def _seen(item, row, start, q_len, kv_len, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys ``start + item`` [1, KEYS] each row [ROWS, 1] sees."""
    own = row + (kv_len - q_len)
    over = kv_len
    if CAUSAL:
        over = tl.minimum(own + 1, kv_len)
    elif WINDOW >= 0:
        over = tl.minimum(own + (WINDOW + 1), kv_len)
    seen = item < over - start
    if WINDOW >= 0:
        seen = seen & (item >= own - (WINDOW + start))
    return seen


@triton.jit(do_not_specialize=["heads", "programs", "blocks", "q_len", "kv_len"])
def attention(
    out, lse, q, k, v, scale, softcap, heads, programs, blocks, q_len, kv_len, q_batch, q_token, q_head, k_batch,
    k_token, k_head, v_batch, v_token, v_head, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, STAGES: tl.constexpr, SPECIALIZED: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """Some blocks of ROWS queries of one head a program: ``programs`` share the ``blocks`` of a head.

    ``heads``: those of all batches. ``out`` is row-major. GROUP heads of queries share one of keys. WIDTH elements are
    a head, SPAN >= WIDTH are copied, zeros beyond. ``scale`` is above 0: a row's greatest product is found before it is
    scaled. With LONGEST programs with many keys run first, then those with fewer; otherwise programs of a head are
    neighbours, so that the cache holds its keys.
    """
    program = tl.program_id(0)
    if LONGEST:
        mine = program // heads
        flat = program % heads
    else:
        mine = program % programs
        flat = program // programs
    batch = (flat // HEADS).to(tl.int64)
    head = (flat % HEADS).to(tl.int64)
    group = head // GROUP
    q += batch * q_batch + head * q_head
    k += batch * k_batch + group * k_head
    v += batch * v_batch + group * v_head
    q_tiles = tl.make_tensor_descriptor(q, [q_len, WIDTH], [q_token, 1], [ROWS, SPAN])
    k_tiles = tl.make_tensor_descriptor(k, [kv_len, WIDTH], [k_token, 1], [KEYS, SPAN])
    v_tiles = tl.make_tensor_descriptor(v, [kv_len, WIDTH], [v_token, 1], [KEYS, SPAN])
    item = tl.arange(0, KEYS)
    col = tl.arange(0, SPAN)
    # a score is a logit in units of the base-2 exponential
    factor = scale * LOG2E
    if CAPPED:
        factor = softcap * LOG2E
    for turn in tl.range(0, blocks, programs):
        first = _place_of(turn, mine, blocks, programs) * ROWS
        row = first + tl.arange(0, ROWS)
        queries = q_tiles.load([first, 0])
        acc = tl.zeros([ROWS, SPAN], tl.float32)
        top = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        begin, end = _keys_of(first, q_len, kv_len, CAUSAL, WINDOW, ROWS, KEYS)
        for start in tl.range(begin, end, KEYS, num_stages=STAGES, warp_specialize=SPECIALIZED):
            keys = k_tiles.load([start, 0])
            products = tl.dot(queries, keys.T)
            if CAPPED:
                # the hyperbolic tangent; exp2 of a large number is inf, of which the quotient is 0
                products = 1.0 - 2.0 / (1.0 + tl.exp2(products * (scale / softcap * (2.0 * LOG2E))))
            seen = _seen(item[None, :], row[:, None], start, q_len, kv_len, CAUSAL, WINDOW)
            products = tl.where(seen, products, -float("inf"))
            new = tl.maximum(top, tl.max(products, axis=1) * factor)
            # so that rows which have seen no key yet do not compute inf - inf
            base = tl.where(new == -float("inf"), 0.0, new)
            weights = tl.exp2(products * factor - base[:, None])
            kept = tl.exp2(top - base)
            total = total * kept + tl.sum(weights, axis=1)
            values = v_tiles.load([start, 0])
            acc = tl.dot(weights.to(values.dtype), values, acc * kept[:, None])
            top = new
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        inside = (row < q_len)[:, None] & (col < WIDTH)[None, :]
        place = (batch * q_len + row) * HEADS + head
        tl.store(out + place[:, None] * WIDTH + col[None, :], acc.to(out.dtype.element_ty), mask=inside)
        found = tl.where(total == 0.0, -float("inf"), top * LN2 + tl.log(total))
        tl.store(lse + flat.to(tl.int64) * q_len + row, found, mask=row < q_len)

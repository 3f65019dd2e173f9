"""The gradients of attention from the log-sum-exp of each row (Dao, 2023): by keys and values, and by queries.

With ``p = exp(logits - lse)`` and ``delta = sum(grad_out * out)`` of a row, the slope of a logit is ``p * (grad_out @
v.T - delta)``. Each kernel keeps one tile and passes over the others, so that nothing is added by atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .scores import exponential, keys_of, rows_of, score_of, scored


@triton.jit(do_not_specialize=["q_len"])
def row_deltas(
    deltas, grad_out, out, q_len, grad_batch, grad_token, grad_head, out_batch, out_token, out_head,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``deltas`` [batch, heads, q_len], fp32; a program has ROWS queries of one head."""
    blocks = tl.cdiv(q_len, ROWS)
    flat = tl.program_id(0) // blocks
    batch = (flat // HEADS).to(tl.int64)
    head = (flat % HEADS).to(tl.int64)
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, SPAN)
    inside = (row < q_len)[:, None] & (col < WIDTH)[None, :]
    token = row.to(tl.int64)[:, None]
    gradient = tl.load(grad_out + batch * grad_batch + head * grad_head + token * grad_token + col[None, :],
                       mask=inside, other=0.0).to(tl.float32)  # fmt: skip
    result = tl.load(out + batch * out_batch + head * out_head + token * out_token + col[None, :],
                     mask=inside, other=0.0).to(tl.float32)  # fmt: skip
    tl.store(deltas + flat.to(tl.int64) * q_len + row, tl.sum(gradient * result, axis=1), mask=row < q_len)


@triton.jit
def _tile(x, first, token, item, col, length, WHOLE: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr):
    """Elements [len(item), SPAN] of the rows from ``first`` on; with WHOLE all rows are there."""
    at = (x + (tl.zeros([], tl.int64) + first) * token) + (item[:, None] * token + col[None, :])
    if not WHOLE:
        return tl.load(at, mask=(first + item < length)[:, None] & (col < WIDTH)[None, :], other=0.0)
    if WIDTH < SPAN:
        return tl.load(at, mask=(col < WIDTH)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def _pass_rows(
    grad_k, grad_v, keys, values, q, grad_out, lse, deltas, mask, key, begin, end, gap_at, gap, factor,
    softcap, q_token, grad_token, mask_row, q_len, kv_len, EDGES: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASK: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
    STEP: tl.constexpr, NEED_K: tl.constexpr, NEED_V: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add rows of one head to the gradients of a tile of keys and of values.

    They are begin..end; with EDGES without those from ``gap_at`` on, so many that ``gap`` is their number.
    """
    col = tl.arange(0, SPAN)
    item = tl.arange(0, STEP)
    for step in tl.range(begin, end - gap, STEP, num_stages=STAGES):
        start = step
        if EDGES:
            start += tl.where(step >= gap_at, gap, 0)
        row = start + item
        queries = _tile(q, start, q_token, item, col, q_len, not EDGES, WIDTH, SPAN)
        gradient = _tile(grad_out, start, grad_token, item, col, q_len, not EDGES, WIDTH, SPAN)
        found = tl.load(lse + row, mask=row < q_len, other=0.0)
        products = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
        scores, slopes = scored(
            products, factor, softcap, mask, row[None, :], key[:, None], mask_row, q_len, kv_len, EDGES, CAUSAL,
            WINDOW, CAPPED, MASK,
        )  # fmt: skip
        weights = exponential(scores, score_of(found, MASK)[None, :], MASK)
        if NEED_V:
            grad_v = tl.dot(weights.to(gradient.dtype), gradient, grad_v, input_precision=PRECISION)
        if NEED_K:
            delta = tl.load(deltas + row, mask=row < q_len, other=0.0)
            change = tl.dot(values, tl.trans(gradient), input_precision=PRECISION)
            change = weights * (change - delta[None, :]) * slopes
            grad_k = tl.dot(change.to(queries.dtype), queries, grad_k, input_precision=PRECISION)
    return grad_k, grad_v


@triton.jit(do_not_specialize=["blocks", "q_len", "kv_len"])
def by_keys(
    grad_k, grad_v, grad_out, q, k, v, mask, lse, deltas, scale, softcap, blocks, q_len, kv_len, grad_batch,
    grad_token, grad_head, q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head, mask_batch,
    mask_head, mask_row, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASK: tl.constexpr,
    KEYS: tl.constexpr, STEP: tl.constexpr, NEED_K: tl.constexpr, NEED_V: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program has KEYS keys of one head, of which ``blocks`` are a head's, and passes over STEP queries at a time.

    It adds up over the GROUP heads of queries that share them, in order. Causal programs with many queries, those of
    the first keys, run first.
    """
    if CAUSAL:
        groups = tl.num_programs(0) // blocks
        block = tl.program_id(0) // groups
        flat = tl.program_id(0) % groups
    else:
        block = tl.program_id(0) % blocks
        flat = tl.program_id(0) // blocks
    count: tl.constexpr = HEADS // GROUP
    batch = (flat // count).to(tl.int64)
    group = (flat % count).to(tl.int64)
    first = block * KEYS
    item = tl.arange(0, KEYS)
    key = first + item
    col = tl.arange(0, SPAN)
    keys = _tile(k + batch * k_batch + group * k_head, first, k_token, item, col, kv_len, False, WIDTH, SPAN)
    values = _tile(v + batch * v_batch + group * v_head, first, v_token, item, col, kv_len, False, WIDTH, SPAN)
    sum_k = tl.zeros([KEYS, SPAN], tl.float32)
    sum_v = tl.zeros([KEYS, SPAN], tl.float32)
    begin, full, over, end = rows_of(first, q_len, kv_len, CAUSAL, WINDOW, STEP, KEYS)
    for member in tl.range(0, GROUP):
        head = group * GROUP + member
        own_q = q + batch * q_batch + head * q_head
        own_grad = grad_out + batch * grad_batch + head * grad_head
        own_lse = lse + (batch * HEADS + head) * q_len
        own_deltas = deltas + (batch * HEADS + head) * q_len
        own_mask = mask
        if MASK != 0:
            own_mask = mask + batch * mask_batch + head * mask_head
        sum_k, sum_v = _pass_rows(
            sum_k, sum_v, keys, values, own_q, own_grad, own_lse, own_deltas, own_mask, key, full, over, over, 0,
            scale, softcap, q_token, grad_token, mask_row, q_len, kv_len, False, CAUSAL, WINDOW, CAPPED, MASK, WIDTH,
            SPAN, STEP, NEED_K, NEED_V, PRECISION, STAGES,
        )  # fmt: skip
        sum_k, sum_v = _pass_rows(
            sum_k, sum_v, keys, values, own_q, own_grad, own_lse, own_deltas, own_mask, key, begin, end, full,
            over - full, scale, softcap, q_token, grad_token, mask_row, q_len, kv_len, True, CAUSAL, WINDOW, CAPPED,
            MASK, WIDTH, SPAN, STEP, NEED_K, NEED_V, PRECISION, 1,
        )  # fmt: skip
    inside = (key < kv_len)[:, None] & (col < WIDTH)[None, :]
    place = ((batch * kv_len + key) * count + group)[:, None] * WIDTH + col[None, :]
    if NEED_K:
        tl.store(grad_k + place, (sum_k * scale).to(grad_k.dtype.element_ty), mask=inside)
    if NEED_V:
        tl.store(grad_v + place, sum_v.to(grad_v.dtype.element_ty), mask=inside)


@triton.jit
def _pass_keys(
    acc, queries, gradient, top, delta, k, v, mask, row, begin, end, gap_at, gap, factor, softcap, k_token, v_token,
    mask_row, q_len, kv_len, EDGES: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    MASK: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add keys to the gradient of a tile of queries, without its scale: begin..end, with EDGES without ``gap``."""
    col = tl.arange(0, SPAN)
    item = tl.arange(0, STEP)
    for step in tl.range(begin, end - gap, STEP, num_stages=STAGES):
        start = step
        if EDGES:
            start += tl.where(step >= gap_at, gap, 0)
        key = start + item
        keys = _tile(k, start, k_token, item, col, kv_len, not EDGES, WIDTH, SPAN)
        values = _tile(v, start, v_token, item, col, kv_len, not EDGES, WIDTH, SPAN)
        products = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        scores, slopes = scored(
            products, factor, softcap, mask, row[:, None], key[None, :], mask_row, q_len, kv_len, EDGES, CAUSAL,
            WINDOW, CAPPED, MASK,
        )  # fmt: skip
        weights = exponential(scores, top[:, None], MASK)
        change = tl.dot(gradient, tl.trans(values), input_precision=PRECISION)
        change = weights * (change - delta[:, None]) * slopes
        acc = tl.dot(change.to(keys.dtype), keys, acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=["heads", "blocks", "q_len", "kv_len"])
def by_queries(
    grad_q, grad_out, q, k, v, mask, lse, deltas, scale, softcap, heads, blocks, q_len, kv_len, grad_batch,
    grad_token, grad_head, q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head, mask_batch,
    mask_head, mask_row, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has ROWS queries of one head, of which ``blocks`` are a head's, and passes over STEP keys at a time.

    ``heads``: those of all batches. Causal programs with many keys run first.
    """
    if CAUSAL:
        block = blocks - 1 - tl.program_id(0) // heads
        flat = tl.program_id(0) % heads
    else:
        block = tl.program_id(0) % blocks
        flat = tl.program_id(0) // blocks
    batch = (flat // HEADS).to(tl.int64)
    head = (flat % HEADS).to(tl.int64)
    group = head // GROUP
    first = block * ROWS
    item = tl.arange(0, ROWS)
    row = first + item
    col = tl.arange(0, SPAN)
    queries = _tile(q + batch * q_batch + head * q_head, first, q_token, item, col, q_len, False, WIDTH, SPAN)
    gradient = _tile(
        grad_out + batch * grad_batch + head * grad_head, first, grad_token, item, col, q_len, False, WIDTH, SPAN
    )
    place = flat.to(tl.int64) * q_len + row
    top = score_of(tl.load(lse + place, mask=row < q_len, other=0.0), MASK)
    delta = tl.load(deltas + place, mask=row < q_len, other=0.0)
    k += batch * k_batch + group * k_head
    v += batch * v_batch + group * v_head
    if MASK != 0:
        mask += batch * mask_batch + head * mask_head
    acc = tl.zeros([ROWS, SPAN], tl.float32)
    begin, full, over, end = keys_of(first, q_len, kv_len, CAUSAL, WINDOW, ROWS, STEP)
    acc = _pass_keys(
        acc, queries, gradient, top, delta, k, v, mask, row, full, over, over, 0, scale, softcap, k_token, v_token,
        mask_row, q_len, kv_len, False, CAUSAL, WINDOW, CAPPED, MASK, WIDTH, SPAN, STEP, PRECISION, STAGES,
    )  # fmt: skip
    acc = _pass_keys(
        acc, queries, gradient, top, delta, k, v, mask, row, begin, end, full, over - full, scale, softcap, k_token,
        v_token, mask_row, q_len, kv_len, True, CAUSAL, WINDOW, CAPPED, MASK, WIDTH, SPAN, STEP, PRECISION, 1,
    )  # fmt: skip
    inside = (row < q_len)[:, None] & (col < WIDTH)[None, :]
    to = ((batch * q_len + row) * HEADS + head)[:, None] * WIDTH + col[None, :]
    tl.store(grad_q + to, (acc * scale).to(grad_q.dtype.element_ty), mask=inside)

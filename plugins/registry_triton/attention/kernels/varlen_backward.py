"""The gradients of attention of packed sequences: a tile of keys, or of queries, is of one sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from .backward import _pass_keys, _pass_rows, _tile
from .scores import keys_of, rows_of, score_of
from .varlen import _bounds_of, _sequence_of


@triton.jit
def _first_and_length(offsets, sequence, total):
    """First token and number of tokens of a sequence, within the ``total`` ones also where offsets are wrong."""
    begin, end = _bounds_of(offsets, sequence, total)
    return begin, end - begin


@triton.jit(do_not_specialize=["tiles", "sequences", "total_q", "total_k"])
def packed_by_keys(
    grad_k, grad_v, grad_out, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, deltas, scale, softcap, tiles, sequences,
    total_q, total_k, grad_token, grad_head, q_token, q_head, k_token, k_head, v_token, v_head, HEADS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, KEYS: tl.constexpr, STEP: tl.constexpr, NEED_K: tl.constexpr, NEED_V: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has up to KEYS keys of one head and one sequence; ``tiles`` of them are a head's, some without any.

    It passes over STEP queries of the sequence at a time and adds up over the GROUP heads of queries that share the
    keys, in order. Gradients are row-major. Causal programs of the first keys of a sequence, which most queries see,
    run before those behind them.
    """
    count: tl.constexpr = HEADS // GROUP
    if CAUSAL:
        tile = tl.program_id(0) // count
        group = (tl.program_id(0) % count).to(tl.int64)
    else:
        tile = tl.program_id(0) % tiles
        group = (tl.program_id(0) // tiles).to(tl.int64)
    sequence = _sequence_of(tile, cu_seqlens_k, sequences, total_k, KEYS)
    q_begin, q_len = _first_and_length(cu_seqlens_q, sequence, total_q)
    k_begin, kv_len = _first_and_length(cu_seqlens_k, sequence, total_k)
    first = (tile - (k_begin // KEYS + sequence)) * KEYS
    if (first >= 0) & (first < kv_len):
        item = tl.arange(0, KEYS)
        key = first + item
        col = tl.arange(0, SPAN)
        token = k_begin.to(tl.int64)
        keys = _tile(k + token * k_token + group * k_head, first, k_token, item, col, kv_len, False, WIDTH, SPAN)
        values = _tile(v + token * v_token + group * v_head, first, v_token, item, col, kv_len, False, WIDTH, SPAN)
        sum_k = tl.zeros([KEYS, SPAN], tl.float32)
        sum_v = tl.zeros([KEYS, SPAN], tl.float32)
        begin, full, over, end = rows_of(first, q_len, kv_len, CAUSAL, WINDOW, STEP, KEYS)
        row = q_begin.to(tl.int64)
        for member in tl.range(0, GROUP):
            head = group * GROUP + member
            own_q = q + row * q_token + head * q_head
            own_grad = grad_out + row * grad_token + head * grad_head
            own_lse = lse + head * total_q + row
            own_deltas = deltas + head * total_q + row
            sum_k, sum_v = _pass_rows(
                sum_k, sum_v, keys, values, own_q, own_grad, own_lse, own_deltas, lse, key, full, over, over, 0, scale,
                softcap, q_token, grad_token, 0, q_len, kv_len, False, CAUSAL, WINDOW, CAPPED, 0, WIDTH, SPAN, STEP,
                NEED_K, NEED_V, PRECISION, STAGES,
            )  # fmt: skip
            sum_k, sum_v = _pass_rows(
                sum_k, sum_v, keys, values, own_q, own_grad, own_lse, own_deltas, lse, key, begin, end, full,
                over - full, scale, softcap, q_token, grad_token, 0, q_len, kv_len, True, CAUSAL, WINDOW, CAPPED, 0,
                WIDTH, SPAN, STEP, NEED_K, NEED_V, PRECISION, 1,
            )  # fmt: skip
        inside = (key < kv_len)[:, None] & (col < WIDTH)[None, :]
        place = ((token + key) * count + group)[:, None] * WIDTH + col[None, :]
        if NEED_K:
            tl.store(grad_k + place, (sum_k * scale).to(grad_k.dtype.element_ty), mask=inside)
        if NEED_V:
            tl.store(grad_v + place, sum_v.to(grad_v.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tiles", "sequences", "total_q", "total_k"])
def packed_by_queries(
    grad_q, grad_out, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, deltas, scale, softcap, tiles, sequences, total_q,
    total_k, grad_token, grad_head, q_token, q_head, k_token, k_head, v_token, v_head, HEADS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has up to ROWS queries of one head and one sequence; ``tiles`` of them are a head's, some without any.

    It passes over STEP keys of the sequence at a time. Causal programs of the last tiles, which see most keys, run
    first.
    """
    if CAUSAL:
        tile = tiles - 1 - tl.program_id(0) // HEADS
        head = (tl.program_id(0) % HEADS).to(tl.int64)
    else:
        tile = tl.program_id(0) % tiles
        head = (tl.program_id(0) // tiles).to(tl.int64)
    sequence = _sequence_of(tile, cu_seqlens_q, sequences, total_q, ROWS)
    q_begin, q_len = _first_and_length(cu_seqlens_q, sequence, total_q)
    k_begin, kv_len = _first_and_length(cu_seqlens_k, sequence, total_k)
    first = (tile - (q_begin // ROWS + sequence)) * ROWS
    if (first >= 0) & (first < q_len):
        group = head // GROUP
        item = tl.arange(0, ROWS)
        row = first + item
        col = tl.arange(0, SPAN)
        token = q_begin.to(tl.int64)
        queries = _tile(q + token * q_token + head * q_head, first, q_token, item, col, q_len, False, WIDTH, SPAN)
        gradient = _tile(
            grad_out + token * grad_token + head * grad_head, first, grad_token, item, col, q_len, False, WIDTH, SPAN
        )
        place = head * total_q + token + row
        top = score_of(tl.load(lse + place, mask=row < q_len, other=0.0), 0)
        delta = tl.load(deltas + place, mask=row < q_len, other=0.0)
        k += k_begin.to(tl.int64) * k_token + group * k_head
        v += k_begin.to(tl.int64) * v_token + group * v_head
        acc = tl.zeros([ROWS, SPAN], tl.float32)
        begin, full, over, end = keys_of(first, q_len, kv_len, CAUSAL, WINDOW, ROWS, STEP)
        acc = _pass_keys(
            acc, queries, gradient, top, delta, k, v, lse, row, full, over, over, 0, scale, softcap, k_token, v_token,
            0, q_len, kv_len, False, CAUSAL, WINDOW, CAPPED, 0, WIDTH, SPAN, STEP, PRECISION, STAGES,
        )  # fmt: skip
        acc = _pass_keys(
            acc, queries, gradient, top, delta, k, v, lse, row, begin, end, full, over - full, scale, softcap, k_token,
            v_token, 0, q_len, kv_len, True, CAUSAL, WINDOW, CAPPED, 0, WIDTH, SPAN, STEP, PRECISION, 1,
        )  # fmt: skip
        inside = (row < q_len)[:, None] & (col < WIDTH)[None, :]
        to = ((token + row) * HEADS + head)[:, None] * WIDTH + col[None, :]
        tl.store(grad_q + to, (acc * scale).to(grad_q.dtype.element_ty), mask=inside)

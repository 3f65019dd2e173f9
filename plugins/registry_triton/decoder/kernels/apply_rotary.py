"""Rotation of pairs of elements by angles of positions (Su et al., 2021) into new tensors, in fp32."""

from __future__ import annotations

import triton
import triton.language as tl

from .rotary_kv_append import _heads, _rotate_into


@triton.jit(do_not_specialize=["tokens", "length"])
def apply_rotary(
    rotated_query, rotated_key, query, key, positions, table, tokens, length, position_sequence, position_token,
    query_sequence, query_token, query_head, key_sequence, key_token, key_head, row_stride, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, DIM: tl.constexpr, NEOX: tl.constexpr, BACK: tl.constexpr, HALF: tl.constexpr,
    PAIRS: tl.constexpr, REST_SPAN: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A program rotates TOKENS tokens of HEADS of the QUERIES heads of query, or of the KEYS heads of key.

    Tokens are in sequences of ``length``; ``query_sequence``, ``query_token`` and ``query_head`` are strides. Of a
    head's DIM elements the first 2 HALF are rotated, of BACK by the opposite angles, and the others copied; PAIRS >=
    HALF and REST_SPAN >= DIM - 2 HALF are powers of two.
    """
    query_blocks: tl.constexpr = (QUERIES + HEADS - 1) // HEADS
    blocks: tl.constexpr = query_blocks + (KEYS + HEADS - 1) // HEADS
    rest: tl.constexpr = DIM - 2 * HALF
    block = tl.program_id(0) % blocks
    token = tl.program_id(0) // blocks * TOKENS + tl.arange(0, TOKENS)
    there = token < tokens
    sequence, place = token // length, token % length
    at = sequence.to(tl.int64) * position_sequence + place.to(tl.int64) * position_token
    row = table + tl.load(positions + at, mask=there, other=0).to(tl.int64)[:, None] * row_stride
    pair = tl.arange(0, PAIRS)[None, :]
    mask = there[:, None] & (pair < HALF)
    cos = tl.load(row + pair, mask=mask, eviction_policy="evict_last").to(tl.float32)[:, None, :]
    sin = tl.load(row + HALF + pair, mask=mask, eviction_policy="evict_last").to(tl.float32)[:, None, :]
    if BACK:
        sin = -sin
    if block < query_blocks:
        head = block * HEADS + tl.arange(0, HEADS)
        own = there[:, None, None] & (head < QUERIES)[None, :, None]
        source = _heads(query, sequence, place, head, query_sequence, query_token, query_head)
        target = _heads(rotated_query, sequence, token, head, 0, QUERIES * DIM, DIM)
        _rotate_into(target, source, own, cos, sin, NEOX, HALF, PAIRS, rest, REST_SPAN)
    else:
        head = (block - query_blocks) * HEADS + tl.arange(0, HEADS)
        own = there[:, None, None] & (head < KEYS)[None, :, None]
        source = _heads(key, sequence, place, head, key_sequence, key_token, key_head)
        target = _heads(rotated_key, sequence, token, head, 0, KEYS * DIM, DIM)
        _rotate_into(target, source, own, cos, sin, NEOX, HALF, PAIRS, rest, REST_SPAN)

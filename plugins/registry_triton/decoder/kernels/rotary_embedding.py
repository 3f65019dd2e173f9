"""Rotation of pairs of elements by angles of positions (Su et al., 2021), in fp32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rotated(a, b, cos, sin):
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _rotate(
    x, token, head, own, cos, sin, token_stride, head_stride, NEOX: tl.constexpr, HALF: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Rotate a block [tokens, heads, 2 PAIRS]; ``own`` masks [tokens, heads, 1], ``cos`` is [tokens, 1, PAIRS]."""
    first = x + token.to(tl.int64)[:, None, None] * token_stride + head.to(tl.int64)[None, :, None] * head_stride
    if NEOX:
        pair = tl.arange(0, PAIRS)[None, None, :]
        mask = own & (pair < HALF)
        a = tl.load(first + pair, mask=mask).to(tl.float32)
        b = tl.load(first + HALF + pair, mask=mask).to(tl.float32)
        a, b = _rotated(a, b, cos, sin)
        tl.store(first + pair, a.to(x.dtype.element_ty), mask=mask)
        tl.store(first + HALF + pair, b.to(x.dtype.element_ty), mask=mask)
    else:
        item = tl.arange(0, 2 * PAIRS)[None, None, :]
        mask = own & (item < 2 * HALF)
        # neighbours are loaded together, in wide loads
        value = tl.load(first + item, mask=mask).to(tl.float32)
        a, b = tl.split(tl.reshape(value, [value.shape[0], value.shape[1], PAIRS, 2]))
        a, b = _rotated(a, b, cos, sin)
        value = tl.reshape(tl.join(a, b), value.shape)
        tl.store(first + item, value.to(x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def rotary_embedding(
    positions, query, key, table, tokens, query_token, query_head, key_token, key_head, row_stride,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr,
    PAIRS: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A program rotates TOKENS tokens of HEADS of the QUERIES heads of query, or of the KEYS heads of key.

    ``query_token`` and ``query_head`` are strides. A head's first 2 HALF elements are rotated; PAIRS >= HALF.
    """
    query_blocks: tl.constexpr = (QUERIES + HEADS - 1) // HEADS
    blocks: tl.constexpr = query_blocks + (KEYS + HEADS - 1) // HEADS
    block = tl.program_id(0) % blocks
    token = tl.program_id(0) // blocks * TOKENS + tl.arange(0, TOKENS)
    there = token < tokens
    row = table + tl.load(positions + token, mask=there, other=0).to(tl.int64)[:, None] * row_stride
    pair = tl.arange(0, PAIRS)[None, :]
    mask = there[:, None] & (pair < HALF)
    cos = tl.load(row + pair, mask=mask, eviction_policy="evict_last").to(tl.float32)[:, None, :]
    sin = tl.load(row + HALF + pair, mask=mask, eviction_policy="evict_last").to(tl.float32)[:, None, :]
    if block < query_blocks:
        head = block * HEADS + tl.arange(0, HEADS)
        own = there[:, None, None] & (head < QUERIES)[None, :, None]
        _rotate(query, token, head, own, cos, sin, query_token, query_head, NEOX, HALF, PAIRS)
    else:
        head = (block - query_blocks) * HEADS + tl.arange(0, HEADS)
        own = there[:, None, None] & (head < KEYS)[None, :, None]
        _rotate(key, token, head, own, cos, sin, key_token, key_head, NEOX, HALF, PAIRS)

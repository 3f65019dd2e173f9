"""Rotation of queries and keys (Su et al., 2021) in fp32, with keys and values written to a cache."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependents import await_kernel_ahead
from .rotary_embedding import _rotated


@triton.jit
def _rotate_into(
    target, source, own, cos, sin, NEOX: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    REST_SPAN: tl.constexpr,
):  # fmt: skip
    """Rotate heads [tokens, heads, 1] from ``source`` to ``target``; ``own`` masks them, ``cos`` is [tokens, 1, PAIRS].

    The REST elements behind the rotated ones are copied.
    """
    if NEOX:
        pair = tl.arange(0, PAIRS)[None, None, :]
        mask = own & (pair < HALF)
        a = tl.load(source + pair, mask=mask).to(tl.float32)
        b = tl.load(source + HALF + pair, mask=mask).to(tl.float32)
        a, b = _rotated(a, b, cos, sin)
        tl.store(target + pair, a.to(target.dtype.element_ty), mask=mask)
        tl.store(target + HALF + pair, b.to(target.dtype.element_ty), mask=mask)
    else:
        item = tl.arange(0, 2 * PAIRS)[None, None, :]
        mask = own & (item < 2 * HALF)
        # neighbours are loaded together, in wide loads
        value = tl.load(source + item, mask=mask).to(tl.float32)
        a, b = tl.split(tl.reshape(value, [value.shape[0], value.shape[1], PAIRS, 2]))
        a, b = _rotated(a, b, cos, sin)
        value = tl.reshape(tl.join(a, b), value.shape)
        tl.store(target + item, value.to(target.dtype.element_ty), mask=mask)
    if REST > 0:
        item = 2 * HALF + tl.arange(0, REST_SPAN)[None, None, :]
        mask = own & (item < 2 * HALF + REST)
        tl.store(target + item, tl.load(source + item, mask=mask), mask=mask)


@triton.jit
def _heads(x, sequence, place, head, sequence_stride, place_stride, head_stride):
    """Pointers [tokens, heads, 1] to the first elements of heads."""
    token = sequence.to(tl.int64) * sequence_stride + place.to(tl.int64) * place_stride
    return x + token[:, None, None] + head.to(tl.int64)[None, :, None] * head_stride


@triton.jit(do_not_specialize=["tokens", "q_len", "room"])
def rotary_kv_append(
    rotated, kv_lens, query, key, value, table, k_cache, v_cache, lengths, positions, tokens, q_len, room,
    position_sequence, position_token, query_sequence, query_token, query_head, key_sequence, key_token, key_head,
    value_sequence, value_token, value_head, table_sequence, table_row, k_cache_sequence, k_cache_slot, k_cache_head,
    v_cache_sequence, v_cache_slot, v_cache_head, length_stride, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    DIM: tl.constexpr, SPAN: tl.constexpr, NEOX: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    REST_SPAN: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program takes TOKENS tokens of HEADS of the QUERIES heads of query, or of the KEYS heads of key and value.

    ``query_sequence``, ``query_token`` and ``query_head`` are strides. Without positions the table has a row for each
    token, with positions those of all. Of a head's DIM elements the first 2 HALF are rotated; SPAN >= DIM,
    PAIRS >= HALF and REST_SPAN >= DIM - 2 HALF are powers of two. Tokens beyond a sequence's ``room`` are not written.
    """
    await_kernel_ahead(DEPENDENT)
    query_blocks: tl.constexpr = (QUERIES + HEADS - 1) // HEADS
    blocks: tl.constexpr = query_blocks + (KEYS + HEADS - 1) // HEADS
    rest: tl.constexpr = DIM - 2 * HALF
    block = tl.program_id(0) % blocks
    token = tl.program_id(0) // blocks * TOKENS + tl.arange(0, TOKENS)
    there = token < tokens
    sequence, new = token // q_len, token % q_len
    if positions is None:
        row = sequence.to(tl.int64) * table_sequence + new.to(tl.int64) * table_row
    else:
        position = tl.load(positions + sequence * position_sequence + new * position_token, mask=there, other=0)
        row = position.to(tl.int64) * table_row
    row = table + row[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    mask = there[:, None] & (pair < HALF)
    cos = tl.load(row + pair, mask=mask, eviction_policy="evict_last").to(tl.float32)[:, None, :]
    sin = tl.load(row + HALF + pair, mask=mask, eviction_policy="evict_last").to(tl.float32)[:, None, :]
    if block < query_blocks:
        head = block * HEADS + tl.arange(0, HEADS)
        own = there[:, None, None] & (head < QUERIES)[None, :, None]
        source = _heads(query, sequence, new, head, query_sequence, query_token, query_head)
        target = _heads(rotated, sequence, token, head, 0, QUERIES * DIM, DIM)
        _rotate_into(target, source, own, cos, sin, NEOX, HALF, PAIRS, rest, REST_SPAN)
    else:
        head = (block - query_blocks) * HEADS + tl.arange(0, HEADS)
        slot = tl.load(lengths + sequence * length_stride, mask=there, other=0) + new
        if block == query_blocks:
            length = tl.minimum(slot + 1, room).to(tl.int32)
            tl.store(kv_lens + sequence, length, mask=there & (new == q_len - 1))
        kept = there & (slot >= 0) & (slot < room)
        own = kept[:, None, None] & (head < KEYS)[None, :, None]
        item = tl.arange(0, SPAN)[None, None, :]
        copied = own & (item < DIM)
        source = _heads(value, sequence, new, head, value_sequence, value_token, value_head)
        # on its way while keys are rotated
        values = tl.load(source + item, mask=copied)
        source = _heads(key, sequence, new, head, key_sequence, key_token, key_head)
        target = _heads(k_cache, sequence, slot, head, k_cache_sequence, k_cache_slot, k_cache_head)
        _rotate_into(target, source, own, cos, sin, NEOX, HALF, PAIRS, rest, REST_SPAN)
        target = _heads(v_cache, sequence, slot, head, v_cache_sequence, v_cache_slot, v_cache_head)
        tl.store(target + item, values, mask=copied)

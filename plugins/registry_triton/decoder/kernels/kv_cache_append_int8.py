"""Writes keys and values to their slots of a paged cache of int8."""

from __future__ import annotations

import triton
import triton.language as tl

from ...kernels.quantize import _store_levels


@triton.jit
def _append_levels(
    cache, x, scale, token, head, block, offset, own, token_stride, head_stride, block_stride, slot_stride, cache_head,
    DIM: tl.constexpr, SPAN: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Write the levels of a block [tokens, heads, SPAN]; ``own`` masks [tokens, heads, 1]."""
    col = tl.arange(0, SPAN)[None, None, :]
    mask = own & (col < DIM)
    source = x + token.to(tl.int64)[:, None, None] * token_stride + head.to(tl.int64)[None, :, None] * head_stride
    row = cache + (block * block_stride + offset * slot_stride)[:, None, None]
    target = row + head.to(tl.int64)[None, :, None] * cache_head + col
    value = tl.load(source + col, mask=mask, other=0.0).to(tl.float32)
    quotient = tl.div_rn(value, tl.zeros_like(value) + tl.load(scale))
    _store_levels(target, quotient, mask, 127.0, True, ROUND)


@triton.jit(do_not_specialize=["tokens"])
def kv_cache_append_int8(
    key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale, tokens, key_token, key_head, value_token,
    value_head, key_block, key_slot, key_cache_head, value_block, value_slot, value_cache_head, SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, ROUND: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """A program writes HEADS heads of TOKENS tokens, keys and values, to blocks of SIZE slots. SPAN >= DIM.

    ``key_token`` and the like are strides. A token with a negative slot is skipped.
    """
    blocks: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    token = tl.program_id(0) // blocks * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1).to(tl.int64)
    own = (slot >= 0)[:, None, None] & (head < KV_HEADS)[None, :, None]
    block, offset = slot // SIZE, slot % SIZE
    _append_levels(
        key_cache, key, k_scale, token, head, block, offset, own, key_token, key_head, key_block, key_slot,
        key_cache_head, DIM, SPAN, ROUND,
    )  # fmt: skip
    _append_levels(
        value_cache, value, v_scale, token, head, block, offset, own, value_token, value_head, value_block, value_slot,
        value_cache_head, DIM, SPAN, ROUND,
    )  # fmt: skip

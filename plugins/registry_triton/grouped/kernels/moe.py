"""The two products of a mixture of experts on the tensor cores: tiles of the pairs of one expert.

Pairs are in the order of ``expert_order.sort_pairs``; each program finds its expert by the offsets.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...decoder.kernels.gated import _activated
from ...kernels.gemm_int4 import _tile
from ...kernels.grouped_gemm import group_of


@triton.jit
def _multiply(acc, left, right, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    """acc + left @ right; with SWAP acc is transposed, so that the wider weight fills the tensor cores' rows."""
    if SWAP:
        acc = tl.dot(tl.trans(right), tl.trans(left), acc, input_precision=PRECISION)
    else:
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SWAP: tl.constexpr):
    if SWAP:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    return acc


@triton.jit(do_not_specialize=["PAIRS", "TILES_M"])
def gate_up(
    inner, x, w13, order, offsets, PAIRS, TILES_M, HIDDEN, WIDTH, TOP_K: tl.constexpr, EXPERTS: tl.constexpr,
    PLACES: tl.constexpr, FUNCTION: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, SWAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """inner[row, WIDTH] = act(gate) * up of the token of order[row]; the halves of w13's rows stay in registers."""
    tile_m, tile_n = _tile(TILES_M, tl.cdiv(WIDTH, BLOCK_N), GROUP_M)
    group, row, end = group_of(offsets, tile_m, PAIRS, EXPERTS, PLACES, BLOCK_M)
    if (group > 0) & (group <= EXPERTS):
        m = row + tl.arange(0, BLOCK_M)
        n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        token = tl.load(order + m, mask=m < end, other=0) // TOP_K
        left_at = x + token[:, None].to(tl.int64) * HIDDEN + k[None, :]
        first = (group - 1).to(tl.int64) * 2 * WIDTH
        gate_at = w13 + (first + n[None, :]) * HIDDEN + k[:, None]
        up_at = w13 + (first + WIDTH + n[None, :]) * HIDDEN + k[:, None]
        gate, up = _zeros(BLOCK_M, BLOCK_N, SWAP), _zeros(BLOCK_M, BLOCK_N, SWAP)
        for start in tl.range(0, HIDDEN, BLOCK_K, num_stages=STAGES):
            if EVEN_K:
                left = tl.load(left_at, mask=m[:, None] < end, other=0.0)
                of_gate = tl.load(gate_at, mask=n[None, :] < WIDTH, other=0.0)
                of_up = tl.load(up_at, mask=n[None, :] < WIDTH, other=0.0)
            else:
                rest = start + k < HIDDEN
                left = tl.load(left_at, mask=(m[:, None] < end) & rest[None, :], other=0.0)
                of_gate = tl.load(gate_at, mask=(n[None, :] < WIDTH) & rest[:, None], other=0.0)
                of_up = tl.load(up_at, mask=(n[None, :] < WIDTH) & rest[:, None], other=0.0)
            gate = _multiply(gate, left, of_gate, SWAP, PRECISION)
            up = _multiply(up, left, of_up, SWAP, PRECISION)
            left_at += BLOCK_K
            gate_at += BLOCK_K
            up_at += BLOCK_K
        found = _activated(gate, FUNCTION) * up
        if SWAP:
            found = tl.trans(found)
        place = inner + m[:, None].to(tl.int64) * WIDTH + n[None, :]
        tl.store(place, found.to(inner.dtype.element_ty), mask=(m[:, None] < end) & (n[None, :] < WIDTH))


@triton.jit(do_not_specialize=["PAIRS", "TILES_M"])
def down(
    parts, inner, w2, topk_weights, order, offsets, PAIRS, TILES_M, HIDDEN, WIDTH, EXPERTS: tl.constexpr,
    PLACES: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, SWAP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """parts[order[row], HIDDEN] = inner[row] @ w2[expert].T, times the pair's weight in fp32, rounded once."""
    tile_m, tile_n = _tile(TILES_M, tl.cdiv(HIDDEN, BLOCK_N), GROUP_M)
    group, row, end = group_of(offsets, tile_m, PAIRS, EXPERTS, PLACES, BLOCK_M)
    if (group > 0) & (group <= EXPERTS):
        m = row + tl.arange(0, BLOCK_M)
        n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        left_at = inner + m[:, None].to(tl.int64) * WIDTH + k[None, :]
        right_at = w2 + ((group - 1).to(tl.int64) * HIDDEN + n[None, :]) * WIDTH + k[:, None]
        acc = _zeros(BLOCK_M, BLOCK_N, SWAP)
        for start in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES):
            if EVEN_K:
                left = tl.load(left_at, mask=m[:, None] < end, other=0.0)
                right = tl.load(right_at, mask=n[None, :] < HIDDEN, other=0.0)
            else:
                rest = start + k < WIDTH
                left = tl.load(left_at, mask=(m[:, None] < end) & rest[None, :], other=0.0)
                right = tl.load(right_at, mask=(n[None, :] < HIDDEN) & rest[:, None], other=0.0)
            acc = _multiply(acc, left, right, SWAP, PRECISION)
            left_at += BLOCK_K
            right_at += BLOCK_K
        if SWAP:
            acc = tl.trans(acc)
        pair = tl.load(order + m, mask=m < end, other=0)
        weight = tl.load(topk_weights + pair, mask=m < end, other=0.0).to(tl.float32)
        place = parts + pair[:, None].to(tl.int64) * HIDDEN + n[None, :]
        found = (acc * weight[:, None]).to(parts.dtype.element_ty)
        tl.store(place, found, mask=(m[:, None] < end) & (n[None, :] < HIDDEN))

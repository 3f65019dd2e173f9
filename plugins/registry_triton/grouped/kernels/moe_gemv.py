"""The two products of a mixture of experts for a few tokens: multiply-adds at the speed at which the weights arrive.

No tensor cores, no sorting: each program streams rows of one expert's weights past the cache, and keeps x in it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...decoder.kernels.gated import _activated


@triton.jit
def gate_up(
    inner, x, w13, topk_ids, HIDDEN, WIDTH, TOP_K: tl.constexpr, EXPERTS: tl.constexpr, FUNCTION: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """inner[pair, WIDTH] = act(gate) * up; program (pair, columns). Pairs stand first, so that those of one expert
    read its rows at the same time. Nothing is written for an id that is no expert."""
    pair = tl.program_id(0)
    expert = tl.load(topk_ids + pair)
    if (expert >= 0) & (expert < EXPERTS):
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        left_at = x + (pair // TOP_K).to(tl.int64) * HIDDEN + k
        first = expert.to(tl.int64) * 2 * WIDTH
        gate_at = w13 + (first + n[:, None]) * HIDDEN + k[None, :]
        up_at = w13 + (first + WIDTH + n[:, None]) * HIDDEN + k[None, :]
        gate = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        for start in tl.range(0, HIDDEN, BLOCK_K, num_stages=STAGES):
            if EVEN_K:
                left = tl.load(left_at, eviction_policy="evict_last").to(tl.float32)
                own = n[:, None] < WIDTH
            else:
                left = tl.load(left_at, mask=start + k < HIDDEN, other=0.0).to(tl.float32)
                own = (n[:, None] < WIDTH) & (start + k[None, :] < HIDDEN)
            gate += left[None, :] * tl.load(gate_at, mask=own, other=0.0, eviction_policy="evict_first").to(tl.float32)
            up += left[None, :] * tl.load(up_at, mask=own, other=0.0, eviction_policy="evict_first").to(tl.float32)
            left_at += BLOCK_K
            gate_at += BLOCK_K
            up_at += BLOCK_K
        found = _activated(tl.sum(gate, 1), FUNCTION) * tl.sum(up, 1)
        tl.store(inner + pair.to(tl.int64) * WIDTH + n, found.to(inner.dtype.element_ty), mask=n < WIDTH)


@triton.jit
def down(
    y, inner, w2, topk_weights, topk_ids, HIDDEN, WIDTH, TOP_K: tl.constexpr, EXPERTS: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y[token, HIDDEN] = the weighted sum of its experts' inner @ w2.T, in fp32, rounded once.

    Program (token, columns) does all experts of the token: no partial result is written.
    """
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for place in range(TOP_K):
        pair = token * TOP_K + place
        expert = tl.load(topk_ids + pair)
        somebody = (expert >= 0) & (expert < EXPERTS)
        weight = tl.load(topk_weights + pair).to(tl.float32)
        left_at = inner + pair * WIDTH + k
        right_at = w2 + (tl.where(somebody, expert, 0).to(tl.int64) * HIDDEN + n[:, None]) * WIDTH + k[None, :]
        for start in tl.range(0, tl.where(somebody, WIDTH, 0), BLOCK_K, num_stages=STAGES):
            if EVEN_K:
                left = tl.load(left_at, eviction_policy="evict_last").to(tl.float32)
                own = n[:, None] < HIDDEN
            else:
                left = tl.load(left_at, mask=start + k < WIDTH, other=0.0).to(tl.float32)
                own = (n[:, None] < HIDDEN) & (start + k[None, :] < WIDTH)
            right = tl.load(right_at, mask=own, other=0.0, eviction_policy="evict_first").to(tl.float32)
            acc += (left * weight)[None, :] * right
            left_at += BLOCK_K
            right_at += BLOCK_K
    tl.store(y + token * HIDDEN + n, tl.sum(acc, 1).to(y.dtype.element_ty), mask=n < HIDDEN)

"""y[M, N] = x[M, K] @ w[N, K].T + bias[N] with a 2:4 sparse w: tiles, split-K and one-user kernels; sums of fp32.

values [N, K / 2] holds the two kept of each four, meta int32 [N, cdiv(K, 32)] their places: the four bits of group g
from 4 * (g % 8) of word g // 8, the lower place in their low two. A tile of w is expanded in registers where it is
used: w never stands in memory whole. Places in a tile are 32 bits beside a scalar pointer to its first row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gemm_int4 import _tile


@triton.jit
def _kept(values, meta, valid, start, K, EVEN_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """The first and the second value of each group of ``start`` to ``start + BLOCK_K``, and its bits.

    values and meta point to the first of BLOCK_N rows, of which ``valid`` are there; all is [BLOCK_N, BLOCK_K / 4].
    """
    row = tl.arange(0, BLOCK_N)[:, None]
    half = start // 2 + tl.arange(0, BLOCK_K // 2)[None, :]
    word = start // 32 + tl.arange(0, BLOCK_K // 32)[None, :]
    values += row * (K // 2) + half
    meta += row * tl.cdiv(K, 32) + word
    if EVEN_K:
        pairs = tl.load(values, mask=row < valid, other=0.0, eviction_policy="evict_first")
        words = tl.load(meta, mask=row < valid, other=0)
    else:
        pairs = tl.load(values, mask=(row < valid) & (2 * half < K), other=0.0)
        words = tl.load(meta, mask=(row < valid) & (32 * word < K), other=0)
    first, second = tl.split(pairs.reshape(BLOCK_N, BLOCK_K // 4, 2))
    code = words[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]
    return first, second, code.reshape(BLOCK_N, BLOCK_K // 4)


@triton.jit
def _expanded(values, meta, valid, start, K, EVEN_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """w [BLOCK_N, BLOCK_K] from the columns at ``start``."""
    first, second, code = _kept(values, meta, valid, start, K, EVEN_K, BLOCK_N, BLOCK_K)
    low, high = code & 3, (code >> 2) & 3
    zero = tl.zeros_like(first)
    # the lower place is never 3, the higher one never 0
    w0 = tl.where(low == 0, first, zero)
    w1 = tl.where(low == 1, first, tl.where(high == 1, second, zero))
    w2 = tl.where(low == 2, first, tl.where(high == 2, second, zero))
    w3 = tl.where(high == 3, second, zero)
    return tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(BLOCK_N, BLOCK_K)


@triton.jit(do_not_specialize=["M"])
def gemm(
    y, x, values, meta, bias, M, N, K, STEPS, ADD_BIAS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    SWAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, split) does STEPS blocks of K into its own plane of y [splits, M, N].

    With SWAP the weight is the left operand, which the tensor cores take from registers, where it was expanded.
    """
    tile_m, tile_n = _tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    split = tl.program_id(1)
    first_m, first_n = tile_m.to(tl.int64) * BLOCK_M, tile_n.to(tl.int64) * BLOCK_N
    row, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    begin = split * STEPS * BLOCK_K
    end = tl.minimum(begin + STEPS * BLOCK_K, K)
    if SWAP:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    x += first_m * K
    values += first_n * (K // 2)
    meta += first_n * tl.cdiv(K, 32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(x + row[:, None] * K + (start + k)[None, :], mask=row[:, None] < M - first_m, other=0.0)
        else:
            mask = (row[:, None] < M - first_m) & (start + k[None, :] < K)
            left = tl.load(x + row[:, None] * K + (start + k)[None, :], mask=mask, other=0.0)
        weight = _expanded(values, meta, N - first_n, start, K, EVEN_K, BLOCK_N, BLOCK_K)
        if SWAP:
            acc = tl.dot(weight, tl.trans(left), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(left, tl.trans(weight), acc, input_precision=PRECISION)
    if SWAP:
        acc = tl.trans(acc)
    m, n = first_m + row, first_n + tl.arange(0, BLOCK_N)
    if ADD_BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    y += (split.to(tl.int64) * M + m)[:, None] * N + n[None, :]
    tl.store(y, acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M"])
def gemv(
    y, x, values, meta, bias, M, N, K, STEPS, ADD_BIAS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One user: multiply-adds of what is kept alone, each with the element of x that its place names.

    Program (m, n, split) does STEPS blocks of K for one row into its own plane of y [splits, M, N]; rows stand first,
    so that those which need the same weights run at the same time. A single reduction at the end adds the lanes.
    """
    m = tl.program_id(0).to(tl.int64)
    first_n = tl.program_id(1).to(tl.int64) * BLOCK_N
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    begin = split * STEPS * BLOCK_K
    end = tl.minimum(begin + STEPS * BLOCK_K, K)
    x += m * K
    values += first_n * (K // 2)
    meta += first_n * tl.cdiv(K, 32)
    acc = tl.zeros([BLOCK_N, BLOCK_K // 4], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(x + start + k, eviction_policy="evict_last")
        else:
            left = tl.load(x + start + k, mask=start + k < K, other=0.0)
        even, odd = tl.split(left.to(tl.float32).reshape(BLOCK_K // 4, 2, 2))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        first, second, code = _kept(values, meta, N - first_n, start, K, EVEN_K, BLOCK_N, BLOCK_K)
        # the lower place is never 3, the higher one never 0
        low = tl.where((code & 2) != 0, x2[None, :], tl.where((code & 1) != 0, x1[None, :], x0[None, :]))
        high = tl.where((code & 8) == 0, x1[None, :], tl.where((code & 4) != 0, x3[None, :], x2[None, :]))
        acc += first.to(tl.float32) * low + second.to(tl.float32) * high
    result = tl.sum(acc, axis=1)
    n = first_n + tl.arange(0, BLOCK_N)
    if ADD_BIAS:
        result += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y + (split.to(tl.int64) * M + m) * N + n, result.to(y.dtype.element_ty), mask=n < N)

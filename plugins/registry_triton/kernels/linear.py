"""y[M, N] = x[M, K] @ weight[N, K].T + bias[N]: tiles, split-K and one-user kernels; the sums over k are of fp32."""

from __future__ import annotations

import triton
import triton.language as tl

from .gemm_int4 import _tile


@triton.jit(do_not_specialize=["M"])
def gemm(
    y, x, weight, bias, M, N, K, STEPS, ADD_BIAS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    SWAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, split) does STEPS blocks of K into its own plane of y [splits, M, N].

    With SWAP the weight is the left operand: few rows of x then fill no half-empty tile of the tensor cores.
    """
    tile_m, tile_n = _tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    split = tl.program_id(1)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    begin = split * STEPS * BLOCK_K
    end = tl.minimum(begin + STEPS * BLOCK_K, K)
    x += m[:, None] * K + k[None, :] + begin
    weight += n[None, :] * K + k[:, None] + begin
    if SWAP:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(x, mask=m[:, None] < M, other=0.0)
            right = tl.load(weight, mask=n[None, :] < N, other=0.0)
        else:
            left = tl.load(x, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            right = tl.load(weight, mask=(n[None, :] < N) & (start + k[:, None] < K), other=0.0)
        if SWAP:
            acc = tl.dot(tl.trans(right), tl.trans(left), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(left, right, acc, input_precision=PRECISION)
        x += BLOCK_K
        weight += BLOCK_K
    if SWAP:
        acc = tl.trans(acc)
    if ADD_BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    row = split.to(tl.int64) * M + m
    tl.store(y + row[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M"])
def gemv(
    y, x, weight, bias, M, N, K, STEPS, ADD_BIAS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One user: multiply-adds without tensor cores, weights streamed past the cache, x kept in it.

    Program (m, n, split) does STEPS blocks of K for one row into its own plane of y [splits, M, N]; rows stand first,
    so that those which need the same weights run at the same time. A single reduction at the end adds the lanes.
    """
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    begin = split * STEPS * BLOCK_K
    end = tl.minimum(begin + STEPS * BLOCK_K, K)
    x += m * K + k + begin
    weight += n[:, None] * K + k[None, :] + begin
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(x, eviction_policy="evict_last")
            right = tl.load(weight, mask=n[:, None] < N, other=0.0, eviction_policy="evict_first")
        else:
            left = tl.load(x, mask=start + k < K, other=0.0)
            right = tl.load(weight, mask=(n[:, None] < N) & (start + k[None, :] < K), other=0.0)
        acc += left.to(tl.float32)[None, :] * right.to(tl.float32)
        x += BLOCK_K
        weight += BLOCK_K
    result = tl.sum(acc, axis=1)
    if ADD_BIAS:
        result += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    row = split.to(tl.int64) * M + m
    tl.store(y + row * N + n, result.to(y.dtype.element_ty), mask=n < N)


@triton.jit(do_not_specialize=["M"])
def sum_splits(y, partial, bias, M, N, ADD_BIAS: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """y = the sum of the planes of partial [SPLIT_K, M, N], always in the same order, and the bias."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < N
    partial += m * N + n
    total = tl.zeros([BLOCK], tl.float32)
    for _split in tl.static_range(SPLIT_K):
        total += tl.load(partial, mask=mask, other=0.0)
        partial += M.to(tl.int64) * N
    if ADD_BIAS:
        total += tl.load(bias + n, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + m * N + n, total.to(y.dtype.element_ty), mask=mask)

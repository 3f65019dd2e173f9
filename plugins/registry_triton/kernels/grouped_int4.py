"""Rows grouped by expert times each expert's weight of 4 bits, which is expanded in registers where it is used."""

from __future__ import annotations

import triton
import triton.language as tl

from .gemm_int4 import _tile
from .grouped_gemm import group_of
from .packed_decode import dequantized


@triton.jit(do_not_specialize=["M", "TILES_M"])
def gemm(
    y, x, qweight, scales, zeros, offsets, M, N, K, TILES_M, SCALES, EXPERTS: tl.constexpr, PLACES: tl.constexpr,
    GROUP: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y[M, N] = x[M, K] @ w[expert] [K, N] with w = (q - zero) * scale; rows of nobody become 0.

    SCALES is the number of groups of a column, and an expert has so many times N scales. TILES_M as for dense weights.
    """
    tile_m, tile_n = _tile(TILES_M, tl.cdiv(N, BLOCK_N), GROUP_M)
    group, row, end = group_of(offsets, tile_m, M, EXPERTS, PLACES, BLOCK_M)
    if group < EXPERTS + 2:
        somebody = (group > 0) & (group <= EXPERTS)
        expert = tl.where(somebody, group - 1, 0).to(tl.int64)
        m = row + tl.arange(0, BLOCK_M)
        n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        word = tl.arange(0, BLOCK_K // 8)
        left_at = x + m[:, None].to(tl.int64) * K + k[None, :]
        packed_at = qweight + (expert * tl.cdiv(K, 8) + word[:, None]) * N + n[None, :]
        scales += expert * SCALES * N
        if zeros is not None:
            zeros += expert * SCALES * N
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in tl.range(0, tl.where(somebody, K, 0), BLOCK_K, num_stages=STAGES):
            if EVEN_K:
                left = tl.load(left_at, mask=m[:, None] < end, other=0.0)
                packed = tl.load(packed_at, mask=n[None, :] < N, other=0)
            else:
                left = tl.load(left_at, mask=(m[:, None] < end) & (start + k[None, :] < K), other=0.0)
                packed = tl.load(packed_at, mask=(n[None, :] < N) & (start + 8 * word[:, None] < K), other=0)
            weight = dequantized(packed, scales, zeros, start, n, N, K, 4, False, 8.0, GROUP, BLOCK_K, BLOCK_N)
            acc = tl.dot(left, weight.to(left.dtype), acc, input_precision=PRECISION)
            left_at += BLOCK_K
            packed_at += (BLOCK_K // 8) * N.to(tl.int64)
        place = y + m[:, None].to(tl.int64) * N + n[None, :]
        tl.store(place, acc.to(y.dtype.element_ty), mask=(m[:, None] < end) & (n[None, :] < N))

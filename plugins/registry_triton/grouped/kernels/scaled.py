"""Rows grouped by expert times each expert's weight, of float8 or int8 with a scale for each row of both."""

from __future__ import annotations

import triton
import triton.language as tl

from ...kernels.gemm_int4 import _tile
from ...kernels.grouped_gemm import group_of
from ...kernels.scaled_mm import _dot, _loaded


@triton.jit(do_not_specialize=["M", "TILES_M"])
def gemm(
    y, x, weights, offsets, scale_x, scale_weights, M, N, K, TILES_M, EXPERTS: tl.constexpr, PLACES: tl.constexpr,
    INTEGER: tl.constexpr, LOSSY: tl.constexpr, NAN: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y[M, N] = x[M, K] @ weights[expert] [N, K] times the rows' scales; rows of nobody become 0.

    int8 is summed in int32, float8 in fp32, into which what the tensor cores sum in 13 bits is added every LOSSY k's.
    With SWAP a weight is the left operand: few rows then fill no half-empty tile of the tensor cores. TILES_M as for
    dense weights.
    """
    tile_m, tile_n = _tile(TILES_M, tl.cdiv(N, BLOCK_N), GROUP_M)
    group, row, end = group_of(offsets, tile_m, M, EXPERTS, PLACES, BLOCK_M)
    if group < EXPERTS + 2:
        somebody = (group > 0) & (group <= EXPERTS)
        expert = tl.where(somebody, group - 1, 0).to(tl.int64)
        m = row + tl.arange(0, BLOCK_M)
        n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        left_at = x + m[:, None].to(tl.int64) * K + k[None, :]
        right_at = weights + (expert * N + n[None, :]) * K + k[:, None]
        LEFT: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
        RIGHT: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
        acc = tl.zeros([LEFT, RIGHT], tl.int32 if INTEGER else tl.float32)
        for start in tl.range(0, tl.where(somebody, K, 0), BLOCK_K, num_stages=STAGES):
            left = _loaded(left_at, m[:, None] < end, start + k[None, :] < K, EVEN_K, NAN)
            right = _loaded(right_at, n[None, :] < N, start + k[:, None] < K, EVEN_K, NAN)
            acc = _dot(left, right, acc, SWAP, INTEGER, LOSSY)
            left_at += BLOCK_K
            right_at += BLOCK_K
        if SWAP:
            acc = tl.trans(acc)
        # rows of nobody may have any scale: theirs are 0
        rows = tl.load(scale_x + m, mask=m < tl.where(somebody, end, 0), other=0.0)
        cols = tl.load(scale_weights + expert * N + n, mask=n < tl.where(somebody, N, 0), other=0.0)
        found = acc.to(tl.float32) * rows[:, None] * cols[None, :]
        place = y + m[:, None].to(tl.int64) * N + n[None, :]
        tl.store(place, found.to(y.dtype.element_ty), mask=(m[:, None] < end) & (n[None, :] < N))

"""Rows grouped by expert times each expert's own weight: tiles that find their expert on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from .gemm_int4 import _tile


@triton.jit
def boundary(offsets, place, M, EXPERTS: tl.constexpr):
    """Boundaries between groups of rows: 0, the offsets kept within 0 to M, then M.

    Group 0 and group EXPERTS + 1 are the rows of nobody, and group i + 1 is expert i's.
    """
    inside = (place > 0) & (place <= EXPERTS + 1)
    offset = tl.load(offsets + place - 1, mask=inside, other=0)
    found = tl.minimum(tl.maximum(offset, 0), M).to(tl.int32)
    return tl.where(place <= 0, 0, tl.where(inside, found, M))


@triton.jit
def group_of(offsets, tile, M, EXPERTS: tl.constexpr, PLACES: tl.constexpr, BLOCK_M: tl.constexpr):
    """The group of a tile of BLOCK_M rows, the tile's first row, and the end of the group's rows.

    Tiles are numbered group by group, so that none holds rows of two; from the last one on the group is EXPERTS + 2.
    """
    place = tl.arange(0, PLACES)
    begin = boundary(offsets, place, M, EXPERTS)
    end = boundary(offsets, place + 1, M, EXPERTS)
    tiles = (tl.maximum(end - begin, 0) + BLOCK_M - 1) // BLOCK_M
    last = tl.cumsum(tiles, 0)
    group = tl.sum((last <= tile).to(tl.int32), 0)
    group = tl.where(group < PLACES, group, EXPERTS + 2)
    here = place == group
    first = tl.sum(tl.where(here, last - tiles, 0), 0)
    row = tl.sum(tl.where(here, begin, 0), 0) + (tile - first) * BLOCK_M
    return tl.minimum(group, EXPERTS + 2), row, tl.sum(tl.where(here, end, 0), 0)


@triton.jit(do_not_specialize=["M", "TILES_M"])
def gemm(
    y, x, weights, offsets, M, N, K, TILES_M, EXPERTS: tl.constexpr, PLACES: tl.constexpr, TRANSPOSED: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y[M, N] = x[M, K] @ weights[expert]; a weight is [N, K], TRANSPOSED [K, N]. Rows of nobody become 0.

    TILES_M bounds the tiles along the rows whatever the offsets are: programs beyond the last tile end at once.
    """
    tile_m, tile_n = _tile(TILES_M, tl.cdiv(N, BLOCK_N), GROUP_M)
    group, row, end = group_of(offsets, tile_m, M, EXPERTS, PLACES, BLOCK_M)
    if group < EXPERTS + 2:
        somebody = (group > 0) & (group <= EXPERTS)
        m = row + tl.arange(0, BLOCK_M)
        n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        left_at = x + m[:, None].to(tl.int64) * K + k[None, :]
        weight = weights + tl.where(somebody, group - 1, 0).to(tl.int64) * N * K
        if TRANSPOSED:
            right_at = weight + k[:, None].to(tl.int64) * N + n[None, :]
        else:
            right_at = weight + n[None, :].to(tl.int64) * K + k[:, None]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in tl.range(0, tl.where(somebody, K, 0), BLOCK_K, num_stages=STAGES):
            if EVEN_K:
                left = tl.load(left_at, mask=m[:, None] < end, other=0.0)
                right = tl.load(right_at, mask=n[None, :] < N, other=0.0)
            else:
                left = tl.load(left_at, mask=(m[:, None] < end) & (start + k[None, :] < K), other=0.0)
                right = tl.load(right_at, mask=(n[None, :] < N) & (start + k[:, None] < K), other=0.0)
            acc = tl.dot(left, right, acc, input_precision=PRECISION)
            left_at += BLOCK_K
            if TRANSPOSED:
                right_at += BLOCK_K * N.to(tl.int64)
            else:
                right_at += BLOCK_K
        place = y + m[:, None].to(tl.int64) * N + n[None, :]
        tl.store(place, acc.to(y.dtype.element_ty), mask=(m[:, None] < end) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M"])
def outer(
    grad_weights, grad_y, x, offsets, M, N, K, EXPERTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """grad_weights[expert] [N, K] = grad_y.T @ x over the expert's rows; program (tile, expert). 0 without rows."""
    tile_n, tile_k = _tile(tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K), GROUP_M)
    expert = tl.program_id(1)
    begin = boundary(offsets, expert + 1, M, EXPERTS)
    end = boundary(offsets, expert + 2, M, EXPERTS)
    m = tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tile_k * BLOCK_K + tl.arange(0, BLOCK_K)
    row = (begin + m)[:, None].to(tl.int64)
    left_at = grad_y + row * N + n[None, :]
    right_at = x + row * K + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in tl.range(begin, end, BLOCK_M, num_stages=STAGES):
        left = tl.load(left_at, mask=(start + m[:, None] < end) & (n[None, :] < N), other=0.0)
        right = tl.load(right_at, mask=(start + m[:, None] < end) & (k[None, :] < K), other=0.0)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
        left_at += BLOCK_M * N.to(tl.int64)
        right_at += BLOCK_M * K.to(tl.int64)
    place = grad_weights + (expert.to(tl.int64) * N + n[:, None]) * K + k[None, :]
    tl.store(place, acc.to(grad_weights.dtype.element_ty), mask=(n[:, None] < N) & (k[None, :] < K))

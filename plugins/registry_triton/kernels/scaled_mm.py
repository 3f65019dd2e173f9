"""y[M, N] = (a[M, K] * scale_a) @ (b[N, K] * scale_b).T + bias[N] of float8 and int8: tiles, and K split over programs.

SCALES: 0 for one of each operand, 1 for one a row of a and of b, 2 for one for 128 of a row of a and for 128 by 128 of
b. int8 is summed in int32, but for the sums over blocks; float8 in fp32, into which the tensor cores' 13 bits are added
every 128 k's, as DeepSeek-V3 does it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gemm_int4 import _tile


@triton.jit
def _loaded(levels, inside, before_end, EVEN_K: tl.constexpr, NAN: tl.constexpr):
    """A tile of an operand, 0 outside; with NAN in fp32, for Triton 3.9's interpreter takes float8's NaN for 480."""
    if EVEN_K:
        tile = tl.load(levels, mask=inside, other=0.0)
    else:
        tile = tl.load(levels, mask=inside & before_end, other=0.0)
    if NAN:
        bits = tile.to(tl.uint8, bitcast=True).to(tl.int32)
        tile = tl.where((bits & 0x7F) == 0x7F, float("nan"), tile.to(tl.float32))
    return tile


@triton.jit
def _dot(left, right, acc, SWAP: tl.constexpr, INTEGER: tl.constexpr, LOSSY: tl.constexpr):
    """acc + left @ right, or its transpose; LOSSY is how many k's the tensor cores may sum in less than fp32."""
    if SWAP:
        first, second = tl.trans(right), tl.trans(left)
    else:
        first, second = left, right
    # one return: Triton 3.6 compiles what follows a return inside of a constexpr branch
    if INTEGER:
        summed = tl.dot(first, second, acc, out_dtype=tl.int32)
    else:
        summed = tl.dot(first, second, acc, max_num_imprecise_acc=LOSSY)
    return summed


@triton.jit
def _scaled(acc, scale_a, scale_b, m, n, M, N, ROWS: tl.constexpr):
    """A raw product times scales of rows, or one of each operand."""
    if ROWS:
        left = tl.load(scale_a + m, mask=m < M, other=0.0)
        right = tl.load(scale_b + n, mask=n < N, other=0.0)
        return acc.to(tl.float32) * left[:, None] * right[None, :]
    return acc.to(tl.float32) * tl.load(scale_a) * tl.load(scale_b)


@triton.jit(do_not_specialize=["M"])
def gemm(
    y, a, b, scale_a, scale_b, bias, M, N, K, STEPS, SCALES: tl.constexpr, INTEGER: tl.constexpr, LOSSY: tl.constexpr,
    NAN: tl.constexpr, WHOLE: tl.constexpr, ADD_BIAS: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, split) does STEPS blocks of K into its own plane of y [splits, M, N].

    WHOLE: there is one split, which applies the scales that are none of blocks; else the sum of the splits does. With
    SWAP b is the left operand: few rows of a then fill no half-empty tile of the tensor cores.
    """
    tile_m, tile_n = _tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    split = tl.program_id(1)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    begin = split * STEPS * BLOCK_K
    end = tl.minimum(begin + STEPS * BLOCK_K, K)
    a += m[:, None] * K + k[None, :] + begin
    b += n[None, :] * K + k[:, None] + begin
    LEFT: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
    RIGHT: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
    none = tl.zeros([LEFT, RIGHT], tl.int32 if INTEGER else tl.float32)
    acc = none
    if SCALES == 2:
        blocks = tl.cdiv(K, 128)
        # a tile is at most 128 wide, and lies in one row of blocks of b
        rows_a, row_b = scale_a + m * blocks, scale_b + tile_n * BLOCK_N // 128 * blocks
        acc = none.to(tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        left = _loaded(a, m[:, None] < M, start + k[None, :] < K, EVEN_K, NAN)
        right = _loaded(b, n[None, :] < N, start + k[:, None] < K, EVEN_K, NAN)
        if SCALES == 2:
            factor = tl.load(rows_a + start // 128, mask=m < M, other=0.0) * tl.load(row_b + start // 128)
            product = _dot(left, right, none, SWAP, INTEGER, LOSSY)
            acc += product.to(tl.float32) * tl.expand_dims(factor, 0 if SWAP else 1)
        else:
            acc = _dot(left, right, acc, SWAP, INTEGER, LOSSY)
        a += BLOCK_K
        b += BLOCK_K
    if SWAP:
        acc = tl.trans(acc)
    result = acc
    if WHOLE and SCALES != 2:
        result = _scaled(acc, scale_a, scale_b, m, n, M, N, SCALES == 1)
    if ADD_BIAS:
        result += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    row = split.to(tl.int64) * M + m
    tl.store(y + row[:, None] * N + n[None, :], result.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M"])
def sum_splits(
    y, partial, scale_a, scale_b, bias, M, N, SCALES: tl.constexpr, ADD_BIAS: tl.constexpr, SPLIT_K: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y = the sum of the planes of partial [SPLIT_K, M, N], in order, times scales but those of blocks, and bias."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < N
    partial += m * N + n
    total = tl.zeros([BLOCK], partial.dtype.element_ty)
    for _split in tl.static_range(SPLIT_K):
        total += tl.load(partial, mask=mask, other=0)
        partial += M.to(tl.int64) * N
    if SCALES == 2:
        result = total
    elif SCALES == 1:
        result = total.to(tl.float32) * tl.load(scale_a + m) * tl.load(scale_b + n, mask=mask, other=0.0)
    else:
        result = total.to(tl.float32) * tl.load(scale_a) * tl.load(scale_b)
    if ADD_BIAS:
        result += tl.load(bias + n, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + m * N + n, result.to(y.dtype.element_ty), mask=mask)

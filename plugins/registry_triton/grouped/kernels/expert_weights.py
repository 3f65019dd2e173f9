"""Beside a dense grouped product: weights of 4 bits written out before it, rows of no expert set to 0 after it."""

from __future__ import annotations

import triton
import triton.language as tl

from ...kernels.grouped_gemm import boundary
from ...kernels.packed_decode import dequantized


@triton.jit(do_not_specialize=["M"])
def dequantize(
    weights, qweight, scales, zeros, offsets, M, N, K, SCALES, EXPERTS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """weights[expert] [K, N] = (q - zero) * scale; program (i, j, expert) writes tile (j, i), unless nobody reads it.

    SCALES is the number of groups of a column. ``q - zero`` is exact in fp32, so that a weight is rounded once.
    """
    program = tl.program_id(2)
    if boundary(offsets, program + 2, M, EXPERTS) > boundary(offsets, program + 1, M, EXPERTS):
        expert = program.to(tl.int64)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        start = tl.program_id(1) * BLOCK_K
        word = start // 8 + tl.arange(0, BLOCK_K // 8)
        k = start + tl.arange(0, BLOCK_K)
        packed = tl.load(
            qweight + (expert * tl.cdiv(K, 8) + word[:, None]) * N + n[None, :],
            mask=(n[None, :] < N) & (8 * word[:, None] < K),
            other=0,
            eviction_policy="evict_first",
        )
        scale_at = scales + expert * SCALES * N
        zero_at = zeros
        if zeros is not None:
            zero_at = zeros + expert * SCALES * N
        value = dequantized(packed, scale_at, zero_at, start, n, N, K, 4, False, 8.0, GROUP, BLOCK_K, BLOCK_N)
        place = weights + (expert * K + k[:, None]) * N + n[None, :]
        tl.store(place, value.to(weights.dtype.element_ty), mask=(n[None, :] < N) & (k[:, None] < K))


@triton.jit(do_not_specialize=["M"])
def clear_beside(y, offsets, M, N, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """y[M, N] = 0 in the rows before the first expert's and after the last one's; other programs end at once."""
    begin = boundary(offsets, 1, M, EXPERTS)
    end = boundary(offsets, EXPERTS + 1, M, EXPERTS)
    first = tl.program_id(0) * BLOCK_M
    if (first < begin) | (tl.minimum(first + BLOCK_M, M) > end):
        m = first + tl.arange(0, BLOCK_M)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        beside = (m < M) & ((m < begin) | (m >= end))
        place = y + m[:, None].to(tl.int64) * N + n[None, :]
        zero = tl.zeros([BLOCK_M, BLOCK_N], y.dtype.element_ty)
        tl.store(place, zero, mask=beside[:, None] & (n[None, :] < N))

"""w[K, N] = (q - zero) * scale in half precision: the packed weight of gemm_int4 written out whole."""

from __future__ import annotations

import triton
import triton.language as tl

from .gemm_int4 import _expand, _zero_points


@triton.jit
def dequantize(
    weight, qweight, scales, zeros, N, K, GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Program (i, j) writes tile (j, i); one row of scales serves it: BLOCK_K divides GROUP.

    ``q - zero`` is exact in fp32, so that the product with the scale is rounded once.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * BLOCK_K
    word = start // 8 + tl.arange(0, BLOCK_K // 8)
    k = start + tl.arange(0, BLOCK_K)
    packed = tl.load(
        qweight + word[:, None].to(tl.int64) * N + n[None, :],
        mask=(n[None, :] < N) & (8 * word[:, None] < K),
        other=0,
        eviction_policy="evict_first",
    )
    place = n if PER_CHANNEL else start // GROUP * N + n
    scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
    zero = _zero_points(zeros, place, n < N)
    value = (_expand(packed, BLOCK_K // 8, BLOCK_N) - 8388608.0 - zero[None, :]) * scale[None, :]
    out = weight + k[:, None].to(tl.int64) * N + n[None, :]
    tl.store(out, value.to(weight.dtype.element_ty), mask=(n[None, :] < N) & (k[:, None] < K))

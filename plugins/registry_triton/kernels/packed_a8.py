"""y[M, N] = (a[M, K] * scale_a[M]) @ w[K, N] + bias[N], with a in int8 or float8 and w = (q - zero) * scale packed.

The packing is packed_decode.py's. The tensor cores multiply levels of 8 bits with levels of 8 bits: int8 with int8,
whose sums in int32 are exact, and float8 with float8 where it holds the weight's centred levels exactly: of 4 bits.
With a weight of 8 bits both become fp16, which holds both exactly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packed_decode import levels, with_bias, zero_points


@triton.jit
def _product(left, weight, NARROW: tl.constexpr):
    """Levels [BLOCK_M, BLOCK_K] times centred levels in fp32 [BLOCK_K, BLOCK_N], in fp32."""
    if NARROW:
        return tl.dot(left, weight.to(left.dtype)).to(tl.float32)
    else:
        return tl.dot(left.to(tl.float16), weight.to(tl.float16))


@triton.jit(do_not_specialize=["M", "SPAN"])
def gemm(
    y, a, scale_a, qweight, scales, zeros, bias, M, N, K, SPAN, BITS: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr, STATIC: tl.constexpr, BIAS: tl.constexpr,
    NARROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, split) does SPAN of the K into its own plane of y [splits, M, N].

    Scale and zero point, less the centre, follow on the product, s * (a @ q - z * sum(a)), once a block, which lies in
    one group, or after the loop for whole channels; the activations' scales follow last.
    """
    PER_WORD: tl.constexpr = 32 // BITS
    tiles_n = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    k = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // PER_WORD)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, K)
    a += m[:, None] * K + k[None, :]
    qweight += (begin // PER_WORD + word[:, None]).to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(a + start, mask=m[:, None] < M, other=0.0)
            packed = tl.load(qweight, mask=n[None, :] < N, other=0)
        else:
            left = tl.load(a + start, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            packed = tl.load(qweight, mask=(n[None, :] < N) & (start + PER_WORD * word[:, None] < K), other=0)
        product = _product(left, levels(packed, BLOCK_K // PER_WORD, BLOCK_N, BITS, False) - MIDDLE, NARROW)
        if zeros is not None:
            sums = tl.sum(left.to(tl.float32), axis=1)
        if PER_CHANNEL:
            acc += product
            if zeros is not None:
                total += sums
        else:
            place = start // GROUP * N + n
            scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
            if zeros is not None:
                zero = zero_points(zeros, place, n < N, MIDDLE) - MIDDLE
                product -= sums[:, None] * zero[None, :]
            acc += product * scale[None, :]
        qweight += (BLOCK_K // PER_WORD) * N.to(tl.int64)
    if PER_CHANNEL:
        if zeros is not None:
            acc -= total[:, None] * (zero_points(zeros, n, n < N, MIDDLE) - MIDDLE)[None, :]
        acc *= tl.load(scales + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    token = tl.zeros_like(m) if STATIC else m
    acc *= tl.load(scale_a + token, mask=m < M, other=0.0)[:, None]
    acc = with_bias(acc, bias, n, N, BIAS)
    row = split.to(tl.int64) * M + m
    tl.store(y + row[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))

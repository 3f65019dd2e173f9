"""y[M, N] = a[M, K] @ w[K, N] + bias[N] with w = (q - zero) * scale: prefill, split-K and one-user kernels.

The packing is packed_decode.py's. The sums over k are of fp32 throughout. A tile of w is expanded in registers where it
is used: w never stands in memory whole. With ``order`` [K] row k of the packed weight belongs to column order[k] of a.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packed_decode import columns, dequantized, field, levels, with_bias, zero_points


@triton.jit
def _tile(TILES_M, TILES_N, GROUP_M: tl.constexpr):
    """Place of this program's tile, in bands of GROUP_M rows of tiles, so that neighbours share what L2 holds."""
    program = tl.program_id(0)
    band = GROUP_M * TILES_N
    first = (program // band) * GROUP_M
    height = tl.minimum(TILES_M - first, GROUP_M)
    return first + (program % band) % height, (program % band) // height


@triton.jit(do_not_specialize=["M"])
def gemm(
    y, a, qweight, scales, zeros, order, bias, M, N, K, BITS: tl.constexpr, NF4: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Prefill: a tile a program; weights are dequantised to a's dtype and multiplied by the tensor cores.

    Scales of groups are applied inside the loop, scales of whole channels after it.
    """
    PER_WORD: tl.constexpr = 32 // BITS
    tile_m, tile_n = _tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // PER_WORD)
    a += m[:, None] * K
    qweight += word[:, None].to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if PER_CHANNEL:
        zero = zero_points(zeros, n, n < N, MIDDLE)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        column = columns(order, start + k, K)
        if EVEN_K:
            left = tl.load(a + column[None, :], mask=m[:, None] < M, other=0.0)
            packed = tl.load(qweight, mask=n[None, :] < N, other=0)
        else:
            left = tl.load(a + column[None, :], mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            packed = tl.load(qweight, mask=(n[None, :] < N) & (start + PER_WORD * word[:, None] < K), other=0)
        if PER_CHANNEL:
            weight = levels(packed, BLOCK_K // PER_WORD, BLOCK_N, BITS, NF4) - zero[None, :]
        else:
            weight = dequantized(packed, scales, zeros, start, n, N, K, BITS, NF4, MIDDLE, GROUP, BLOCK_K, BLOCK_N)
        acc = tl.dot(left, weight.to(left.dtype), acc, input_precision=PRECISION)
        qweight += (BLOCK_K // PER_WORD) * N.to(tl.int64)
    if PER_CHANNEL:
        acc = acc * tl.load(scales + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    acc = with_bias(acc, bias, n, N, BIAS)
    tl.store(y + m[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M", "SPAN"])
def splitk(
    y, a, qweight, scales, zeros, order, bias, M, N, K, SPAN, BITS: tl.constexpr, NF4: tl.constexpr,
    MIDDLE: tl.constexpr, GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, SWAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Batched decode: program (tile, split) does SPAN of the K into its own plane of y [SPLIT_K, M, N].

    The tensor cores multiply centred levels, which every dtype holds exactly (those of a codebook rounded to a's);
    scale and zero point, less the centre, follow on the product, s * (a @ q - z * sum(a)), once a block, which lies in
    one group, or after the loop for whole channels. With SWAP the weights are the left operand: few rows of a then
    fill no half-empty tile of the tensor cores.
    """
    PER_WORD: tl.constexpr = 32 // BITS
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    split = tl.program_id(1)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // PER_WORD)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, K)
    a += m[:, None].to(tl.int64) * K
    qweight += (begin // PER_WORD + word[:, None]).to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        column = columns(order, start + k, K)
        if EVEN_K:
            left = tl.load(a + column[None, :], mask=m[:, None] < M, other=0.0, eviction_policy="evict_last")
            packed = tl.load(qweight, mask=n[None, :] < N, other=0, eviction_policy="evict_first")
        else:
            left = tl.load(a + column[None, :], mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            packed = tl.load(qweight, mask=(n[None, :] < N) & (start + PER_WORD * word[:, None] < K), other=0)
        weight = (levels(packed, BLOCK_K // PER_WORD, BLOCK_N, BITS, NF4) - MIDDLE).to(left.dtype)
        if SWAP:
            product = tl.trans(tl.dot(tl.trans(weight), tl.trans(left), input_precision=PRECISION))
        else:
            product = tl.dot(left, weight, input_precision=PRECISION)
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
    acc = with_bias(acc, bias, n, N, BIAS)
    row = split.to(tl.int64) * M + m
    tl.store(y + row[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M", "SPAN"])
def gemv(
    y, a, qweight, scales, zeros, order, bias, M, N, K, SPAN, BITS: tl.constexpr, NF4: tl.constexpr,
    MIDDLE: tl.constexpr, GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr,
    CENTRED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One user: multiply-adds without tensor cores, weights streamed past the cache, a kept in it.

    Program (m, n, split) does SPAN of the K for one row into its own plane of y [SPLIT_K, M, N]; rows stand first, so
    that those which need the same weights run at the same time. What stands in each weight beside its level, and the
    zero point, times the sum of a comes off once a word. Sums stay one a word until the end, where a single reduction
    adds them over the program.
    """
    PER_WORD: tl.constexpr = 32 // BITS
    OFFSET: tl.constexpr = 0.0 if NF4 else -MIDDLE if CENTRED else 2.0**BITS
    m = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    word = tl.arange(0, BLOCK_K // PER_WORD)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, K)
    a += m.to(tl.int64) * K
    qweight += (begin // PER_WORD + word[:, None]).to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_K // PER_WORD, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_K // PER_WORD], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        first = start + PER_WORD * word
        if EVEN_K:
            packed = tl.load(qweight, mask=n[None, :] < N, other=0, eviction_policy="evict_first")
        else:
            packed = tl.load(qweight, mask=(n[None, :] < N) & (first[:, None] < K), other=0)
        product = tl.zeros([BLOCK_K // PER_WORD, BLOCK_N], tl.float32)
        sums = tl.zeros([BLOCK_K // PER_WORD], tl.float32)
        for j in tl.static_range(PER_WORD):
            column = columns(order, first + j, K)
            if EVEN_K:
                left = tl.load(a + column, eviction_policy="evict_last").to(tl.float32)
            else:
                left = tl.load(a + column, mask=first + j < K, other=0.0).to(tl.float32)
            product += left[:, None] * field(packed, j, BITS, NF4, MIDDLE, CENTRED)
            sums += left
        if PER_CHANNEL:
            acc += product
            total += sums
        else:
            place = start // GROUP * N + n
            scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
            zero = zero_points(zeros, place, n < N, MIDDLE) + OFFSET
            acc += (product - sums[:, None] * zero[None, :]) * scale[None, :]
        qweight += (BLOCK_K // PER_WORD) * N.to(tl.int64)
    result = tl.sum(acc, axis=0)
    if PER_CHANNEL:
        scale = tl.load(scales + n, mask=n < N, other=0.0).to(tl.float32)
        result = (result - tl.sum(total, axis=0) * (zero_points(zeros, n, n < N, MIDDLE) + OFFSET)) * scale
    result = with_bias(result, bias, n, N, BIAS)
    row = split.to(tl.int64) * M + m
    tl.store(y + row * N + n, result.to(y.dtype.element_ty), mask=n < N)


@triton.jit(do_not_specialize=["units"])
def sum_splits(
    y, partial, bias, units, MULTIPLE: tl.constexpr, N: tl.constexpr, SPLIT_K: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y[i] = bias[i % N] + the sum over the SPLIT_K planes of partial [SPLIT_K, units * MULTIPLE], in a fixed order."""
    count = units.to(tl.int64) * MULTIPLE
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(partial + split * count + place, mask=mask, other=0.0)
    if BIAS:
        total += tl.load(bias + place % N, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=mask)


@triton.jit
def dequantize(
    weight, qweight, scales, zeros, order, N, K, BITS: tl.constexpr, NF4: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """w[K, N] in half precision, written out whole: program (i, j) writes tile (j, i)."""
    PER_WORD: tl.constexpr = 32 // BITS
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * BLOCK_K
    word = start // PER_WORD + tl.arange(0, BLOCK_K // PER_WORD)
    k = start + tl.arange(0, BLOCK_K)
    packed = tl.load(
        qweight + word[:, None].to(tl.int64) * N + n[None, :],
        mask=(n[None, :] < N) & (PER_WORD * word[:, None] < K),
        other=0,
        eviction_policy="evict_first",
    )
    value = dequantized(packed, scales, zeros, start, n, N, K, BITS, NF4, MIDDLE, GROUP, BLOCK_K, BLOCK_N)
    out = weight + columns(order, k, K)[:, None].to(tl.int64) * N + n[None, :]
    tl.store(out, value.to(weight.dtype.element_ty), mask=(n[None, :] < N) & (k[:, None] < K))

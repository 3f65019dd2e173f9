"""y[M, N] = a[M, K] @ w[K, N] with w = (q - zero) * scale, q in 4 bits: prefill, split-K and one-user kernels.

One packing for all (GPTQ's): int32 [K/8, N], element k in bits 4*(k%8) of word k//8; scales and zeros [K/GROUP, N];
without zeros the zero point is 8. Each word is loaded once. No kernel converts integers to floats: a nibble is put
into the mantissa of a power of two, which makes 2**p + q exactly, and the power of two is taken off again. The sums
over k are of fp32 throughout. A tile of w is expanded in registers where it is used: w never stands in memory whole.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _expand(packed, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Words [ROWS, BLOCK_N] as fp32 2**23 + q, [8 * ROWS, BLOCK_N]."""
    shift = tl.arange(0, 8)[None, :, None] * 4
    nibble = ((packed[:, None, :] >> shift) & 15) | 0x4B000000
    return tl.reshape(nibble, [8 * ROWS, BLOCK_N]).to(tl.float32, bitcast=True)


@triton.jit
def _zero_points(zeros, place, mask):
    """Zero points as fp32; 8 everywhere when there are none."""
    if zeros is None:
        return tl.full(place.shape, 8.0, tl.float32)
    else:
        return tl.load(zeros + place, mask=mask, other=0.0).to(tl.float32)


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
    y, a, qweight, scales, zeros, M, N, K, GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Prefill: a tile a program; weights are dequantised to a's dtype and multiplied by the tensor cores.

    Scales of groups (BLOCK_K divides GROUP) are applied inside the loop, scales of whole channels after it.
    """
    tile_m, tile_n = _tile(tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // 8)
    a += m[:, None] * K + k[None, :]
    qweight += word[:, None].to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if PER_CHANNEL:
        zero = _zero_points(zeros, n, n < N)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(a, mask=m[:, None] < M, other=0.0)
            packed = tl.load(qweight, mask=n[None, :] < N, other=0)
        else:
            left = tl.load(a, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            packed = tl.load(qweight, mask=(n[None, :] < N) & (start + 8 * word[:, None] < K), other=0)
        weight = _expand(packed, BLOCK_K // 8, BLOCK_N) - 8388608.0
        if PER_CHANNEL:
            weight = weight - zero[None, :]
        else:
            place = start // GROUP * N + n
            scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
            weight = (weight - _zero_points(zeros, place, n < N)[None, :]) * scale[None, :]
        acc = tl.dot(left, weight.to(left.dtype), acc, input_precision=PRECISION)
        a += BLOCK_K
        qweight += (BLOCK_K // 8) * N.to(tl.int64)
    if PER_CHANNEL:
        acc = acc * tl.load(scales + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    out = m[:, None] * N + n[None, :]
    tl.store(y + out, acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M", "SPAN"])
def splitk(
    y, a, qweight, scales, zeros, M, N, K, SPAN, GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, SWAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Batched decode: program (tile, split) does SPAN of the K into its own plane of y [SPLIT_K, M, N].

    The tensor cores multiply the raw q, which every dtype holds exactly; scale and zero point follow
    on the product, s * (a @ q - z * sum(a)), once a group, or after the loop for whole channels. With SWAP the weights
    are the left operand: few rows of a then fill no half-empty tile of the tensor cores.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    split = tl.program_id(1)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // 8)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, K)
    a += m[:, None].to(tl.int64) * K + k[None, :] + begin
    qweight += (begin // 8 + word[:, None]).to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            left = tl.load(a, mask=m[:, None] < M, other=0.0, eviction_policy="evict_last")
            packed = tl.load(qweight, mask=n[None, :] < N, other=0, eviction_policy="evict_first")
        else:
            left = tl.load(a, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            packed = tl.load(qweight, mask=(n[None, :] < N) & (start + 8 * word[:, None] < K), other=0)
        weight = (_expand(packed, BLOCK_K // 8, BLOCK_N) - 8388608.0).to(left.dtype)
        if SWAP:
            product = tl.trans(tl.dot(tl.trans(weight), tl.trans(left), input_precision=PRECISION))
        else:
            product = tl.dot(left, weight, input_precision=PRECISION)
        sums = tl.sum(left.to(tl.float32), axis=1)
        if PER_CHANNEL:
            acc += product
            total += sums
        else:
            place = start // GROUP * N + n
            scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
            zero = _zero_points(zeros, place, n < N)
            acc += (product - sums[:, None] * zero[None, :]) * scale[None, :]
        a += BLOCK_K
        qweight += (BLOCK_K // 8) * N.to(tl.int64)
    if PER_CHANNEL:
        scale = tl.load(scales + n, mask=n < N, other=0.0).to(tl.float32)
        acc = (acc - total[:, None] * _zero_points(zeros, n, n < N)[None, :]) * scale[None, :]
    row = split.to(tl.int64) * M + m
    tl.store(y + row[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M", "SPAN"])
def gemv(
    y, a, qweight, scales, zeros, M, N, K, SPAN, GROUP: tl.constexpr, PER_CHANNEL: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One user: multiply-adds without tensor cores, weights streamed past the cache, a kept in it.

    Program (m, n, split) does SPAN of the K for one row into its own plane of y [SPLIT_K, M, N]; rows stand first, so
    that those which need the same weights run at the same time. Nibble j of a word is shifted to bits 19..22 and
    becomes 16 + q with one more instruction; 16 + zero times the sum of a comes off once a word. Sums stay one a word
    until the end, where a single reduction adds them over the program.
    """
    m = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    word = tl.arange(0, BLOCK_K // 8)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, K)
    a += m.to(tl.int64) * K + begin + 8 * word
    qweight += (begin // 8 + word[:, None]).to(tl.int64) * N + n[None, :]
    acc = tl.zeros([BLOCK_K // 8, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_K // 8], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        valid = start + 8 * word < K
        if EVEN_K:
            packed = tl.load(qweight, mask=n[None, :] < N, other=0, eviction_policy="evict_first")
        else:
            packed = tl.load(qweight, mask=(n[None, :] < N) & valid[:, None], other=0)
        product = tl.zeros([BLOCK_K // 8, BLOCK_N], tl.float32)
        sums = tl.zeros([BLOCK_K // 8], tl.float32)
        for j in tl.static_range(8):
            if EVEN_K:
                left = tl.load(a + j, eviction_policy="evict_last").to(tl.float32)
            else:
                left = tl.load(a + j, mask=valid, other=0.0).to(tl.float32)
            if j < 5:
                placed = packed << (19 - 4 * j)
            else:
                placed = packed >> (4 * j - 19)
            weight = ((placed & 0x00780000) | 0x41800000).to(tl.float32, bitcast=True)
            product += left[:, None] * weight
            sums += left
        if PER_CHANNEL:
            acc += product
            total += sums
        else:
            place = start // GROUP * N + n
            scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
            zero = _zero_points(zeros, place, n < N) + 16.0
            acc += (product - sums[:, None] * zero[None, :]) * scale[None, :]
        a += BLOCK_K
        qweight += (BLOCK_K // 8) * N.to(tl.int64)
    result = tl.sum(acc, axis=0)
    if PER_CHANNEL:
        scale = tl.load(scales + n, mask=n < N, other=0.0).to(tl.float32)
        result = (result - tl.sum(total, axis=0) * (_zero_points(zeros, n, n < N) + 16.0)) * scale
    row = split.to(tl.int64) * M + m
    tl.store(y + row * N + n, result.to(y.dtype.element_ty), mask=n < N)


@triton.jit(do_not_specialize=["units"])
def sum_splits(y, partial, units, MULTIPLE: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = sum over the SPLIT_K planes of partial [SPLIT_K, units * MULTIPLE], always in the same order."""
    count = units.to(tl.int64) * MULTIPLE
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(partial + split * count + place, mask=mask, other=0.0)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=mask)

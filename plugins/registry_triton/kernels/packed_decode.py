"""Fields of 1, 2, 4 or 8 bits in words of 32 as numbers, and the zero points and scales that go with them.

One packing for all (GPTQ's): int32 [cdiv(K, 32 / BITS), N], element k in the BITS bits from BITS * (k % (32 / BITS)) of
its word; scales and zero points [cdiv(K, GROUP), N]. Each word is loaded once. No integer is converted to a float: its
bits are put into the mantissa of a power of two, which makes 2**p + q exactly, and the power is taken off again.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fields(packed, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr):
    """Words [ROWS, BLOCK_N] as integers q, [ROWS * 32 / BITS, BLOCK_N]; the mask also takes off the sign's copies."""
    PER_WORD: tl.constexpr = 32 // BITS
    shift = tl.arange(0, PER_WORD)[None, :, None] * BITS
    field = (packed[:, None, :] >> shift) & ((1 << BITS) - 1)
    return tl.reshape(field, [PER_WORD * ROWS, BLOCK_N])


@triton.jit
def nf4(q):
    """The level of NF4 (Dettmers et al., 2023) with the number q, 0 to 15, as fp32: a tree of 15 choices."""
    odd = (q & 1) != 0
    two = (q & 2) != 0
    low = tl.where(
        (q & 4) != 0,
        tl.where(
            two,
            tl.where(odd, 0.0, -0.09105003625154495),
            tl.where(odd, -0.18477343022823334, -0.28444138169288635),
        ),
        tl.where(
            two,
            tl.where(odd, -0.39491748809814453, -0.5250730514526367),
            tl.where(odd, -0.6961928009986877, -1.0),
        ),
    )
    high = tl.where(
        (q & 4) != 0,
        tl.where(
            two,
            tl.where(odd, 1.0, 0.7229568362236023),
            tl.where(odd, 0.5626170039176941, 0.44070982933044434),
        ),
        tl.where(
            two,
            tl.where(odd, 0.33791524171829224, 0.24611230194568634),
            tl.where(odd, 0.16093020141124725, 0.07958029955625534),
        ),
    )
    return tl.where((q & 8) != 0, high, low)


@triton.jit
def levels(packed, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, NF4: tl.constexpr):
    """Words [ROWS, BLOCK_N] as fp32 levels [ROWS * 32 / BITS, BLOCK_N]: q, or what the codebook has for it."""
    field = _fields(packed, ROWS, BLOCK_N, BITS)
    if NF4:
        return nf4(field)
    else:
        return (field | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def field(
    packed, j: tl.constexpr, BITS: tl.constexpr, NF4: tl.constexpr, MIDDLE: tl.constexpr, CENTRED: tl.constexpr
):  # fmt: skip
    """Field j of each word as fp32: the level with NF4, else 2**BITS + q; with CENTRED q - MIDDLE.

    It is shifted to the highest bits of a mantissa: no instruction beside shift, mask and exponent. The power of two
    that all then have in common costs fp32 sums 3 bits of their precision.
    """
    HIGH: tl.constexpr = 23 - BITS
    if NF4:
        return nf4(packed >> (BITS * j))
    else:
        if BITS * j < HIGH:
            placed = packed << (HIGH - BITS * j)
        else:
            placed = packed >> (BITS * j - HIGH)
        placed = (placed & (((1 << BITS) - 1) << HIGH)) | ((127 + BITS) << 23)
        weight = placed.to(tl.float32, bitcast=True)
        if CENTRED:
            weight -= 2.0**BITS + MIDDLE
        return weight


@triton.jit
def zero_points(zeros, place, mask, MIDDLE: tl.constexpr):
    """Zero points as fp32; MIDDLE everywhere when there are none."""
    if zeros is None:
        return tl.full(place.shape, MIDDLE, tl.float32)
    else:
        return tl.load(zeros + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _each_group(values, GROUPS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr):
    """Values [GROUPS, BLOCK_N] of a tile's groups, repeated for each of its k's: [BLOCK_K, BLOCK_N]."""
    SIZE: tl.constexpr = BLOCK_K // GROUPS
    return tl.reshape(tl.broadcast_to(values[:, None, :], [GROUPS, SIZE, BLOCK_N]), [BLOCK_K, BLOCK_N])


@triton.jit
def dequantized(
    packed, scales, zeros, start, n, N, K, BITS: tl.constexpr, NF4: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The tile of the weight from row ``start``, columns ``n``, as fp32 [BLOCK_K, BLOCK_N].

    BLOCK_K divides GROUP or is its multiple. q - zero is exact, so that the product with the scale is rounded once.
    """
    level = levels(packed, BLOCK_K * BITS // 32, BLOCK_N, BITS, NF4)
    if GROUP >= BLOCK_K:
        place = start // GROUP * N + n
        scale = tl.load(scales + place, mask=n < N, other=0.0).to(tl.float32)
        return (level - zero_points(zeros, place, n < N, MIDDLE)[None, :]) * scale[None, :]
    else:
        GROUPS: tl.constexpr = BLOCK_K // GROUP
        row = start // GROUP + tl.arange(0, GROUPS)
        place = row[:, None] * N + n[None, :]
        mask = (n[None, :] < N) & (row[:, None] * GROUP < K)
        scale = tl.load(scales + place, mask=mask, other=0.0).to(tl.float32)
        zero = zero_points(zeros, place, mask, MIDDLE)
        scale = _each_group(scale, GROUPS, BLOCK_K, BLOCK_N)
        return (level - _each_group(zero, GROUPS, BLOCK_K, BLOCK_N)) * scale


@triton.jit
def columns(order, k, K):
    """The columns of the activations that belong to the weight's rows ``k``: a permutation, where there is one."""
    if order is None:
        return k
    else:
        return tl.load(order + k, mask=k < K, other=0)


@triton.jit
def with_bias(acc, bias, n, N, BIAS: tl.constexpr):
    """Sums [..., BLOCK_N] with the bias added, where this launch adds one."""
    if BIAS:
        return acc + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    else:
        return acc

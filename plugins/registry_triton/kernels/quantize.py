"""q[M, K] and scales, x about q * scales: levels of int8 or float8 of each row, of groups of it, or by one scale."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scale_of(values, axis: tl.constexpr, MOST: tl.constexpr):
    """The largest magnitude along an axis over MOST; NaN where a NaN is, which a maximum may pass over."""
    most = tl.max(tl.abs(values), axis)
    scale = tl.maximum(tl.div_rn(most, tl.full(most.shape, MOST, tl.float32)), 1.1754943508222875e-38)
    # a float of zeros beside NaN tells of it
    unset = tl.max((values != values).to(tl.int32), axis)
    return tl.where(unset > 0, float("nan"), scale)


@triton.jit
def _to_float8(level):
    """fp32 with the three bits of mantissa that float8_e4m3fn has, halfway to the even number."""
    bits = level.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    # below 2**-6 steps of 2**-9, the last bit of 1.5 * 2**14
    return tl.where(tl.abs(level) < 0.015625, (level + 24576.0) - 24576.0, normal)


@triton.jit
def _store_levels(q, quotient, inside, MOST: tl.constexpr, INTEGER: tl.constexpr, ROUND: tl.constexpr):
    """The levels nearest to the quotients, where ``inside``; NaN is 0 as an integer."""
    level = tl.minimum(tl.maximum(quotient, -MOST), MOST)
    if INTEGER:
        # 1.5 * 2**23 leaves no bit for fractions: the sum is rounded to the nearest integer, halfway to the even one
        level = tl.where(quotient != quotient, 0.0, (level + 12582912.0) - 12582912.0)
        levels = level.to(q.dtype.element_ty)
    elif ROUND:
        levels = _to_float8(level).to(q.dtype.element_ty).to(tl.uint8, bitcast=True)
        levels = tl.where(quotient != quotient, 0x7F, levels).to(tl.uint8).to(q.dtype.element_ty, bitcast=True)
    else:
        levels = tl.where(quotient != quotient, quotient, level).to(q.dtype.element_ty)
    tl.store(q, levels, mask=inside)


@triton.jit
def quantize(
    q, scales, x, scale, K, GROUPS, GROUP: tl.constexpr, MOST: tl.constexpr, INTEGER: tl.constexpr, ROUND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A row a program; it is read once. GROUP 0: one scale a row, or ``scale`` for all rows."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    values = tl.load(x + row * K + col, mask=col < K, other=0.0).to(tl.float32)
    if scale is not None:
        factor = tl.load(scale)
        tl.store(scales, factor, mask=row == 0)
        quotient = tl.div_rn(values, tl.zeros_like(values) + factor)
    elif GROUP == 0:
        factor = _scale_of(values, 0, MOST)
        tl.store(scales + row, factor)
        quotient = values * tl.div_rn(1.0 + tl.zeros_like(factor), factor)
    else:
        grouped = tl.reshape(values, [BLOCK // GROUP, GROUP])
        factors = _scale_of(grouped, 1, MOST)
        place = tl.arange(0, BLOCK // GROUP)
        tl.store(scales + row * GROUPS + place, factors, mask=place < GROUPS)
        inverse = tl.div_rn(tl.full(factors.shape, 1.0, tl.float32), factors)
        quotient = tl.reshape(grouped * inverse[:, None], [BLOCK])
    _store_levels(q + row * K + col, quotient, col < K, MOST, INTEGER, ROUND)


@triton.jit
def quantize_pieces(
    q, scales, x, scale, K, GROUPS, PIECES, GROUP: tl.constexpr, MOST: tl.constexpr, INTEGER: tl.constexpr,
    ROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of a row a program: whole groups, or by ``scale`` for all rows where GROUP is 0."""
    row, piece = tl.program_id(0).to(tl.int64) // PIECES, tl.program_id(0) % PIECES
    col = piece * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row * K + col, mask=col < K, other=0.0).to(tl.float32)
    if GROUP == 0:
        factor = tl.load(scale)
        tl.store(scales, factor, mask=(row == 0) & (piece == 0))
        quotient = tl.div_rn(values, tl.zeros_like(values) + factor)
    else:
        grouped = tl.reshape(values, [BLOCK // GROUP, GROUP])
        factors = _scale_of(grouped, 1, MOST)
        place = piece * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        tl.store(scales + row * GROUPS + place, factors, mask=place < GROUPS)
        inverse = tl.div_rn(tl.full(factors.shape, 1.0, tl.float32), factors)
        quotient = tl.reshape(grouped * inverse[:, None], [BLOCK])
    _store_levels(q + row * K + col, quotient, col < K, MOST, INTEGER, ROUND)

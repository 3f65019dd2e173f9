"""The order in which the tensor cores read levels of 4 or 8 bits, and plain torch that brings a packed weight into it.

A strip is 64 columns, a step 128 k's. Lane ``4 * g + t`` of warp ``w`` has of each strip the columns
``16 * w + 2 * g + c``, and of each 32 k's those of ``16 * half + 4 * t + byte``: the registers ``2 * half + c`` of
PTX's m64n*k32. With 8 bits a vector of four words has 32 k's; with 4 bits it has 64, the first 32 in the low halves of
bytes.
"""

from __future__ import annotations

import torch

STEP = 128
STRIP = 64

_BYTES_80 = 0x80808080 - 2**32
_NIBBLES_8 = 0x88888888 - 2**32
_NIBBLES_1 = 0x11111111


def steps(k: int) -> int:
    """Steps that K takes; the last one may be padded."""
    return -(-k // STEP)


def packed(qweight: torch.Tensor, bits: int, float8: bool) -> torch.Tensor:
    """int32 ``[K * bits / 32, N]`` as int32 ``[strips, steps, vectors, warps, lanes, 4]``.

    8 bits: a level less 128, in two's complement. 4 bits: a level less 8, in two's complement; for float8 a sign and a
    magnitude that is one less if the number is negative.
    """
    per_step = STEP * bits // 32
    missing = -qweight.shape[0] % per_step
    padded = torch.nn.functional.pad(qweight, (0, 0, 0, missing)) if missing else qweight
    # [step, vector, half, t, strip, warp, g, column]
    parts = _fours(padded, bits).unflatten(-1, (-1, 4, 8, 2))
    ordered: torch.Tensor = parts.permute(4, 0, 1, 5, 6, 3, 2, 7).flatten(-2).flatten(4, 5).contiguous()
    if bits == 8:
        return ordered.bitwise_xor_(_BYTES_80)
    signed = ordered ^ _NIBBLES_8
    return signed.bitwise_xor_((ordered.bitwise_not_() >> 3).bitwise_and_(_NIBBLES_1).mul_(7)) if float8 else signed


def _fours(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 ``[steps, vectors, 2, 4, N]``: the levels of ``4 * t`` to ``4 * t + 3`` of each 16 k's, one in each byte.

    With 4 bits those 32 k's further on are in the high halves of the bytes.
    """
    if bits == 8:
        return words.view(-1, 4, 2, 4, words.shape[1])
    # [step, vector, later, half, t // 2, column]
    eights = words.view(-1, 2, 2, 2, 2, words.shape[1])
    first, later = (torch.stack([_spread(part), _spread(part >> 16)], 4).flatten(3, 4) for part in eights.unbind(2))
    return first | later << 4


def _spread(half: torch.Tensor) -> torch.Tensor:
    """The four nibbles of the low half of each word, one in the low half of each byte."""
    wide = half & 0xFFFF
    wide = (wide | wide << 8) & 0x00FF00FF
    return (wide | wide << 4) & 0x0F0F0F0F

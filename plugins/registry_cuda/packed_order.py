"""The order in which the tensor cores read levels of a few bits, and plain torch that brings a packed weight into it.

A strip is 64 columns, a step 128 k's, a piece what four products take: 128 k's beside activations of 8 bits, 64 beside
those of 16. Lane ``4 * g + t`` of warp ``w`` has of each strip the columns ``16 * w + 2 * g + c``, and of each product
the k's of PTX's m64n*k32 (``16 * h + 4 * t + e``) or m64n*k16 (``8 * h + 2 * t + o``), in the registers ``2 * h + c``.
"""

from __future__ import annotations

import torch

from registry.packed.layout import unpack

STEP = 128
STRIP = 64

_MOST_AT_ONCE = 2**24
_K_AXES = {8: (-1, 1, 2, 2, 2, 4, 4, 1), 16: (-1, 2, 2, 2, 2, 4, 1, 2)}
"""By bits of an activation, what K is made of: steps, pieces, pairs of products, products of a pair, h, t, e, o."""
_N_AXES = (-1, 4, 8, 2)
"""What N is made of: strips, w, g, c."""
_AXES = ("step", "piece", "pair", "product", "h", "t", "e", "o", "strip", "w", "g", "c")
_FIELDS: dict[tuple[int, int], tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    (8, 8): (("pair", "product"), ("h", "c"), ("e",)),
    (8, 4): (("pair",), ("h", "c"), ("e", "product")),
    (16, 8): (("pair",), ("product", "h"), ("o", "c")),
    (16, 4): ((), ("pair", "product"), ("o", "h", "c")),
    (16, 2): ((), ("pair",), ("o", "product", "h", "c")),
    (16, 1): ((), (), ("o", "pair", "product", "h", "c")),
}
"""By bits of an activation and of a level: a piece's vectors, a vector's words, a word's levels from the lowest on."""


def steps(k: int) -> int:
    """Steps that K takes; the last one may be padded."""
    return -(-k // STEP)


def packed(qweight: torch.Tensor, k: int, bits: int, activation_bits: int, *, float8: bool = False) -> torch.Tensor:
    """int32 ``[ceil(K * bits / 32), N]`` as int32 ``[strips, words]``, which a lane reads as whole vectors.

    Beside activations of 8 bits a level is less ``2 ** (bits - 1)``, in two's complement; for float8 a sign, and a
    magnitude that is one less if the number is negative. Beside those of 16 bits it is as it was.
    """
    n = qweight.shape[1]
    columns = max(STRIP, _MOST_AT_ONCE // max(k, 1) // STRIP * STRIP)
    parts = []
    for first in range(0, n, columns):
        levels = unpack(qweight[:, first : first + columns], bits, k)
        if activation_bits == 8:
            levels = _signed(levels, bits, float8=float8)
        parts.append(_ordered(levels, bits, activation_bits))
    return torch.cat(parts)


def _signed(levels: torch.Tensor, bits: int, *, float8: bool) -> torch.Tensor:
    sign = 2 ** (bits - 1)
    moved = levels ^ sign
    return torch.where(levels < sign, moved ^ (sign - 1), moved) if float8 else moved


def _ordered(levels: torch.Tensor, bits: int, activation_bits: int) -> torch.Tensor:
    """int32 ``[K, columns]`` as ``[strips, words]``; what is added is zero."""
    padded = torch.nn.functional.pad(levels, (0, 0, 0, -levels.shape[0] % STEP))
    parts = padded.unflatten(1, _N_AXES).unflatten(0, _K_AXES[activation_bits])
    vectors, words, fields = _FIELDS[activation_bits, bits]
    order = ("strip", "step", "piece", *vectors, "w", "g", "t", *words, *fields)
    rest = [axis for axis in _AXES if axis not in order]
    ordered = parts.permute([_AXES.index(axis) for axis in (*rest, *order)])
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=levels.device)
    # the levels' bits do not meet, so that their sum wraps into the sign alone
    summed: torch.Tensor = (ordered.reshape(-1, 32 // bits) << shifts).sum(-1, dtype=torch.int32)
    return summed.view(padded.shape[1] // STRIP, -1)

"""The order in which Humming's kernels for 16-bit activations read a weight, and plain torch that brings one into it.

A tile is 16 k's by 64 columns. Lane ``4 * r + c`` of a warp has, of each tile, the columns ``8 * i + r`` and the k's
``8 * h + 2 * c`` and the next: 32 numbers, in the order of i (its pairs first), h and the two k's. They fill words from
the first on, and in a word the even places come before the odd ones, so that two neighbours are 16 bits apart.

Scales and zero points are written once for each group and column, in blocks of 64 columns of which each eighth is a
neighbour; what is applied to the result, in blocks of 32 of which each eighth pair is.
"""

from __future__ import annotations

import torch

from .form import HummingForm

TILE_K = 16
TILE_N = 64
LANES = 32

_CHUNK = 2**24
"""Numbers that are brought into order at a time, so that a large weight needs no int32 copy of each number."""
_MIDDLE = 128


def packed(qweight: torch.Tensor, form: HummingForm) -> torch.Tensor:
    """int32 ``[words of K, N]`` as int32 ``[K / 16, N * bits / 2]``."""
    shape = form.k // TILE_K, form.n * form.bits // 2
    if qweight.device.type == "meta":
        return qweight.new_empty(shape)
    made = qweight.new_empty(shape)
    tiles = max(2, _CHUNK // (form.n * TILE_K) // 2 * 2)  # whole words, which hold 32 k's of one bit
    for first in range(0, shape[0], tiles):
        last = min(first + tiles, shape[0])
        words = qweight[first * TILE_K * form.bits // 32 : last * TILE_K * form.bits // 32]
        made[first:last] = _in_words(_in_lanes(_numbers(words, form)), form.bits).view(last - first, -1)
    return made


def _numbers(words: torch.Tensor, form: HummingForm) -> torch.Tensor:
    """The weight's integers ``[k, n]``, or their signs and magnitudes where the kernel reads these."""
    shifts = torch.arange(0, 32, form.bits, dtype=torch.int32, device=words.device)
    q: torch.Tensor = ((words.unsqueeze(1) >> shifts[:, None]) & (2**form.bits - 1)).flatten(0, 1)
    if not form.is_signed:
        return q
    # -1 is all ones but for the sign and the magnitude 0, to which the kernel adds 1
    return torch.where(q >= _MIDDLE, q - _MIDDLE, 2 * _MIDDLE - 1 - q)


def _in_lanes(q: torch.Tensor) -> torch.Tensor:
    """``[k, n]`` as ``[tiles of k, tiles of n, lanes, 32]``."""
    k, n = q.shape
    split = q.view(k // TILE_K, 2, 4, 2, n // TILE_N, 8, 8)  # tile, h, c, k's, tile, i, r
    return split.permute(0, 4, 6, 2, 5, 1, 3).reshape(k // TILE_K, n // TILE_N, LANES, 32)


def _in_words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """32 numbers of a lane as ``bits`` words."""
    split: torch.Tensor = numbers.unflatten(-1, (bits, 16 // bits, 2)).transpose(-1, -2).flatten(-2)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=numbers.device)
    # the fields do not overlap: their sum, which wraps, is their union
    return (split << shifts).sum(-1, dtype=torch.int32)


def factors(values: torch.Tensor, form: HummingForm) -> torch.Tensor:
    """Scales ``[groups, n]`` in the kernel's order; those of whole columns are applied to the result."""
    if form.group:
        return _by_eighths(values.repeat_interleave(form.repeats, 0))
    by_pairs: torch.Tensor = values.unflatten(1, (-1, 4, 4, 2))
    return by_pairs.transpose(2, 3).reshape(values.shape)


def offsets(zeros: torch.Tensor, form: HummingForm) -> torch.Tensor:
    """Zero points ``[groups, n]`` in the kernel's order."""
    return _by_eighths(zeros.repeat_interleave(form.repeats, 0))


def _by_eighths(values: torch.Tensor) -> torch.Tensor:
    eighths: torch.Tensor = values.unflatten(1, (-1, 8, 8))
    return eighths.transpose(2, 3).reshape(values.shape)

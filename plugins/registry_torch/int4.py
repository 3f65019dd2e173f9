"""The packed weight's nibbles in plain torch: int32 ``[K / 8, N]``, element k of a column at bit ``4 * (k % 8)``."""

from __future__ import annotations

import torch

PER_WORD = 8
SYMMETRIC_ZERO = 8


def unpacked(qweight: torch.Tensor) -> torch.Tensor:
    """Integers 0 to 15, int32 ``[K, N]``."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=qweight.device)
    return ((qweight.unsqueeze(1) >> shifts[:, None]) & 15).reshape(-1, qweight.shape[1])


def dequantized(
    qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, group_size: int
) -> torch.Tensor:
    """The weight ``[K, N]`` in the scales' dtype.

    ``q - zero`` is a small integer and exact in any of them, so that the product with the scale is rounded once.
    """
    groups = unpacked(qweight).view(-1, group_size, qweight.shape[1]).to(scales.dtype)
    zero = SYMMETRIC_ZERO if zeros is None else zeros.unsqueeze(1)
    return ((groups - zero) * scales.unsqueeze(1)).flatten(0, 1)


def swapped_nibbles(qweight: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N, K / 2]``: two neighbours along K in a byte, the even one in the upper half."""
    words, n = qweight.shape
    # a little-endian word's bytes are in the order of K, the even element in the lower half
    by_column = qweight.contiguous().view(torch.uint8).view(words, n, 4).permute(1, 0, 2).reshape(n, words * 4)
    return (by_column >> 4) | (by_column << 4)

"""Packed weights of 1, 2, 4 and 8 bits in plain torch: element k of a column is in word ``k // (32 / bits)``."""

from __future__ import annotations

from typing import Any

import torch

_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def weight_of(values: tuple[Any, ...]) -> torch.Tensor:
    """The weight ``[K, N]`` in the scales' dtype, from qweight, scales, zeros, g_idx, bits, group_size, k and layout.

    ``q - zero`` is exact in half precision where the zero point is an integer, so that the product with the scale is
    rounded once; float zero points are subtracted in float32.
    """
    qweight, scales, zeros, g_idx, bits, group_size, k, layout = values
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=qweight.device)
    fields = ((qweight.unsqueeze(1) >> shifts[:, None]) & (2**bits - 1)).flatten(0, 1)[:k]
    if layout == "nf4":
        level, zero = torch.tensor(_NF4, device=qweight.device)[fields], None
    else:
        exact = torch.float32 if zeros is not None and zeros.dtype != scales.dtype else scales.dtype
        level, zero = fields.to(exact), zeros
    middle = 0.5 if bits == 1 else 2.0 ** (bits - 1)
    if g_idx is not None:
        weight: torch.Tensor = (level - (middle if zero is None else zero[g_idx])) * scales[g_idx]
        return weight.to(scales.dtype)
    padded = torch.nn.functional.pad(level, (0, 0, 0, -k % group_size)) if k % group_size else level
    grouped = padded.view(-1, group_size, qweight.shape[1])
    if layout != "nf4":
        grouped = grouped - (middle if zero is None else zero.unsqueeze(1))
    weight = (grouped * scales.unsqueeze(1)).flatten(0, 1)[:k]
    return weight.to(scales.dtype)

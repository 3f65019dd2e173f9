"""Packed weights whose fields count the entries of a table (NF4), written so that Inductor compiles them."""

from __future__ import annotations

from typing import Any

import torch

from .packed_weight import _NF4


def weight_of_table(values: tuple[Any, ...]) -> torch.Tensor:
    """The weight ``[K, N]`` in the scales' dtype, from the values that ``weight_of`` takes.

    The table is built of scalars: Inductor takes the constant that ``torch.tensor`` makes for one more input.
    """
    qweight, scales, _, g_idx, bits, group_size, k, _ = values
    device = qweight.device
    table = torch.stack([torch.full((), level, device=device) for level in _NF4])
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=device)
    fields = ((qweight.unsqueeze(1) >> shifts[:, None]) & (2**bits - 1)).flatten(0, 1)[:k]
    group = torch.arange(k, device=device) // group_size if g_idx is None else g_idx
    weight: torch.Tensor = table[fields] * scales[group]
    return weight.to(scales.dtype)

"""Codebooks: tables of levels by name, for weights whose integers are indices into a table."""

from __future__ import annotations

import torch

# QLoRA (Dettmers et al. 2023): quantiles of a normal distribution, from -1 to 1 with an exact 0; bitsandbytes' numbers
_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)

CODEBOOKS = {"nf4": _NF4}


def levels(codebook: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The levels in rising order, ``[16]``."""
    return torch.tensor(CODEBOOKS[codebook], dtype=dtype, device=device)

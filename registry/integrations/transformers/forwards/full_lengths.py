"""Lengths of sequences that all have one, for ops that read them from the device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.compiler import is_dynamo_compiling


def full_lengths(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """``length`` for each of ``batch`` sequences, int32 [batch]; not to be written to."""
    if is_dynamo_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return torch.full((batch,), length, dtype=torch.int32, device=device)
    return _kept(batch, length, device, torch.is_inference_mode_enabled())


@lru_cache(maxsize=16)
def _kept(batch: int, length: int, device: torch.device, _inference: bool) -> torch.Tensor:
    """The lengths that all layers of a model share."""
    return torch.full((batch,), length, dtype=torch.int32, device=device)

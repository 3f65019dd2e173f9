"""Lengths of sequences that all have one, for ops that read them from the device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.compiler import is_dynamo_compiling

from ....dispatch.torch_side.torch_private import dispatch_modes, transforming


def full_lengths(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """``length`` for each of ``batch`` sequences, int32 [batch]; not to be written to."""
    on_gpu = device.type == "cuda"
    # what a mode of torch (torch.export has one) or a transform makes may not be used outside of it
    others = is_dynamo_compiling() or dispatch_modes() or transforming()
    if others or (on_gpu and torch.cuda.is_current_stream_capturing()):
        return torch.full((batch,), length, dtype=torch.int32, device=device)
    # another stream might read them before this one has written them
    stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
    return _kept(batch, length, device, torch.is_inference_mode_enabled(), stream)


@lru_cache(maxsize=16)
def _kept(batch: int, length: int, device: torch.device, _inference: bool, _stream: int) -> torch.Tensor:
    """The lengths that all layers of a model share."""
    return torch.full((batch,), length, dtype=torch.int32, device=device)

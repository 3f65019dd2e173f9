"""The current CUDA device and stream as plain ints, by torch's private accessors, else by its public ones."""

from __future__ import annotations

import torch


def _public_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
"""``current_stream(index)``: the handle of this thread's current stream on device ``index``."""

current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""``current_device()``: the index of this thread's current device; CUDA must be initialised."""

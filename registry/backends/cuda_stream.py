"""The current CUDA device and stream as plain ints, by torch's private accessors, else by its public ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: int(torch.cuda.current_stream(index).cuda_stream)
)
"""``current_stream(index)``: the handle of this thread's current stream on device ``index``."""

current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""``current_device()``: the index of this thread's current device, 0.1 µs; CUDA must be initialised."""


def only_gpu() -> bool:
    """True if this process sees exactly one GPU, so that no other can be current."""
    return torch.cuda.device_count() == 1
